"""Two sides that are not made alike: a tied head here and a head of its own there, in one dtype or two.

Knows: what may come of an update between them.
Does not know: how an engine ties its head.
"""

from __future__ import annotations

from areal_conformance.benches.pair import PairBench
from areal_conformance.check import Level, check
from areal_conformance.checks.pair.judging import LOOSE, atol, gap, said, truth
from areal_conformance.outcome import expect
from areal_core.contract.errors import CoverageError

UPDATES = 2


@check("pair.update.untied_replica", level=Level.LOOP, law=7, spec="weights", deadline_s=180.0)
async def untied_replica(bench: PairBench) -> None:
    """Replicas with a head of their own serve all of a trainer that ties its head, or refuse it and serve on."""
    cast = bench.train.claimed("precision.bfloat16") and bench.infer.claimed("weights.cast")
    tied, untied = bench.model(tied=True), bench.model(tied=False)
    for dtype in (None, "bfloat16") if cast else (None,):
        allowed = LOOSE if dtype else atol(bench)
        async with bench.pair(model=tied, replica_model=untied, train_dtype=dtype, lr=0.05) as pair:
            for number in range(UPDATES):
                generations = await pair.generate(temperature=1.0, max_new_tokens=12)
                await pair.step(pair.batch(generations))
                try:
                    await pair.update()
                except CoverageError as error:
                    bench.notes.append(f"a replica with a head of its own refuses a tied one: {error.what}")
                    served, when = untied, f"after update {number + 1} was refused"
                else:
                    served = await pair.saved(bench.folder / f"{dtype}-{number}")
                    when = f"after update {number + 1}, trained in {dtype or 'the usual dtype'}"
                after = await pair.generate(temperature=1.0, max_new_tokens=12)
                far = gap(said(after), truth(served, after))
                bench.numbers[f"gap {when}"] = far
                expect(far <= allowed, f"{when}: log-probs are {far:.2e} from those of what has to be served")
                if served is untied:
                    break
