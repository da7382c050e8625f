"""A pair learns as the oracle does: thirty steps, and one number that says how far from it they lead.

Knows: the model, the optimizer and the band; who is asked what, and when.
Does not know: the oracle's path (`oracles.learning`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from areal_conformance.benches.pair import PROMPTS, Pair, PairBench
from areal_conformance.benches.train import read_folder
from areal_conformance.check import Level, check
from areal_conformance.oracles.learning import LearningPath, Surrogate, reward, rewarded
from areal_conformance.outcome import ALLOWED, DISTANCE, expect
from areal_core.contract.batch import Batch
from areal_core.contract.train import ObjectiveSpec, OptimizerSpec

ROUNDS = 15
STEPS_A_ROUND = 2
BAND = 5e-4
"""In float32. A right pair is a tenth of it from the oracle, or less: a log-prob in half precision is five of it."""
HALF_BAND = 1.0
"""Where a side has no float32: rounding alone leads this far."""
LOST = 0.1
"""Beyond it a pair learns something else, and how far it gets from the oracle tells nothing more."""
TEMPERATURE = 0.7
DROPOUT = 0.1
OBJECTIVE = "conformance-surrogate"
# `eps` as large as a usual gradient lets its scale show in the weights, and rounding noise not be divided by itself.
OPTIMIZER = OptimizerSpec(
    lr=5e-3,
    eps=1e-2,
    weight_decay=0.1,
    max_grad_norm=4.0,
    schedule="cosine",
    warmup_steps=2,
    total_steps=26,
    min_lr_ratio=0.3,
)


@check("pair.learning.path", level=Level.LOOP, law=6, spec="train", deadline_s=240.0)
async def path(bench: PairBench) -> None:
    """Thirty steps of learning from its own samples lead a pair where they lead the oracle, step by step."""
    single = bench.train.adapter.dtypes[0] == bench.infer.adapter.dtypes[0] == "float32"
    band = bench.tolerance(rtol=BAND if single else HALF_BAND).rtol
    enough = band if bench.target.locator.mutant else max(LOST, band)  # a mutant need not go on once it is seen
    model = _with_dropout(bench)
    oracle = LearningPath(model, OPTIMIZER, TEMPERATURE)
    weights: Mapping[str, Tensor] = read_folder(model)
    rewards: list[float] = []
    with bench.train.registry.overlay({("objective", OBJECTIVE): Surrogate}):
        async with bench.pair(model=model, optimizer=OPTIMIZER, temperature=TEMPERATURE, microbatch=40) as pair:
            for number in range(ROUNDS):
                if oracle.gaps and oracle.worst.size > enough:
                    break
                batch = await _sampled(bench, pair, oracle, weights, number)
                rewards.append(reward(batch))
                for _ in range(STEPS_A_ROUND):
                    weights = await _stepped(bench, pair, oracle, batch)
                    batch = batch.select(list(reversed(range(batch.num_sequences))))
                await pair.update()
    worst = oracle.worst
    bench.numbers[DISTANCE] = worst.size
    bench.numbers[ALLOWED] = band
    bench.numbers |= {f"largest gap of {name}": size for name, size in oracle.largest().items()}
    bench.numbers |= {"reward at first": rewards[0], "reward at last": sum(rewards[-3:]) / 3}
    first = next((gap for gap in oracle.gaps if not gap.size <= band), worst)
    told = f"{worst.size:.2e} from the oracle over {worst.step} steps, {band:g} allowed"
    expect(worst.size <= band, f"{told}. First beyond it, {first}. Farthest, {worst}")


async def _sampled(
    bench: PairBench, pair: Pair, oracle: LearningPath, weights: Mapping[str, Tensor], number: int
) -> Batch:
    """Return what the replica generates, and have both sides' log-probs of it compared."""
    seed = number if bench.infer.claimed("sampling.seed") else None
    generations = await pair.generate(PROMPTS, temperature=TEMPERATURE, max_new_tokens=10, seed=seed)
    generations += await pair.generate(PROMPTS, temperature=TEMPERATURE, max_new_tokens=6)
    batch = rewarded(pair.batch(generations, PROMPTS * 2))
    told = {"sampled": batch.tokens["logprobs"][batch.tokens["loss_mask"]], "trainer's": await pair.logprobs(batch)}
    oracle.sampled(batch, weights, told)
    return batch


async def _stepped(bench: PairBench, pair: Pair, oracle: LearningPath, batch: Batch) -> Mapping[str, Tensor]:
    """Make a step and have it compared; return the weights after it."""
    report = await pair.trainer.train_step(batch, ObjectiveSpec(name=OBJECTIVE))
    weights = read_folder(await pair.saved(bench.folder / "stepped"))
    shutil.rmtree(bench.folder / "stepped")
    oracle.stepped(batch, report, weights)
    return weights


def _with_dropout(bench: PairBench) -> Path:
    """Return the tiny model with a dropout in its configuration, which nobody may apply; made once."""
    folder = bench.shared_folder / "with-dropout"
    if not folder.exists():
        shutil.copytree(bench.model(), folder)
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"attention_dropout": DROPOUT}))
    return folder
