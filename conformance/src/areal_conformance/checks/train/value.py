"""The value head: a critic that scores, trains, and is no language model; or the refusal to be one.

Knows: `head.value`.
Does not know: how a critic's head begins; its weights are read back.
"""

from __future__ import annotations

from functools import partial

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, number, same, weights_close
from areal_conformance.oracles.train_optimizer import SCALED, OracleTrainer
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import CapabilityError
from areal_core.contract.train import Head, Objective, Output
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

SPEC = "train#areal_core.contract.train.Output"
HEAD = "train#areal_core.contract.train.Head"
VALUES = frozenset({Output.VALUES})
CLAIMS = ("head.value",)


@check("train.value.forward", level=Level.SINGLE, law=1, spec=SPEC, requires=CLAIMS)
def forward(bench: TrainBench) -> None:
    """`values` at token t is read before token t is known, for any packing, and follows the weights as they train."""
    for kind in bench.target.adapter.models:
        batch = bench.batch(["0110", (2, 7), (1, 1), "00001", "0"], seed=3)
        with bench.engine(model=bench.model(kind=kind), head=Head.VALUE, max_tokens_per_microbatch=20) as engine:
            for step in range(2):
                engine.train_step(bench.batch(seed=step), ValueRegression())
                folder = bench.folder / f"{kind}-{step}"
                engine.save_weights(folder)
                got = engine.forward(batch, VALUES).tokens["values"]
                wanted = Oracle(folder, head=Head.VALUE).columns(batch)[Output.VALUES]
                inside = batch.positions > 0
                right = ("torch.float32", (batch.num_tokens,), False)
                facts = (str(got.dtype), tuple(got.shape), got.requires_grad)
                expect(facts == right, f"values are {facts}, expected {right}: no gradient")
                expect(wanted[inside].abs().max() > 1e-3, "the critic's head is still zero after a step")
                close(bench, f"values of {kind} after {step + 1} steps", got[inside], wanted[inside], atol=2e-5)


@check("train.value.step", level=Level.SINGLE, law=6, spec=HEAD, requires=CLAIMS)
def step(bench: TrainBench) -> None:
    """A critic's loss, gradient norm and steps are those of plain autograd and AdamW, cut into micro-batches or not."""
    first = bench.folder / "critic"
    with bench.engine(head=Head.VALUE) as engine:
        engine.train_step(bench.batch(seed=7), ValueRegression())  # so that the head is not at zero
        engine.save_weights(first)
    for tokens in (16384, 14):
        oracle = OracleTrainer(Oracle(first, head=Head.VALUE), SCALED)
        with bench.engine(model=first, head=Head.VALUE, optimizer=SCALED, max_tokens_per_microbatch=tokens) as engine:
            for seed in range(3):
                batch = bench.batch(seed=seed)
                oracle.step(batch, ValueRegression())
                told = engine.train_step(batch, ValueRegression())
                number(bench, f"a critic's loss in step {seed}", told.loss, oracle.loss, atol=1e-4, rtol=1e-3)
                number(bench, f"its gradient norm in step {seed}", told.grad_norm, oracle.norm, atol=1e-4, rtol=1e-3)
            weights_close(bench, "a critic's weights", bench.witnessed(engine), oracle.weights, atol=1e-4)


@check("train.value.saved", level=Level.SINGLE, law=7, spec=HEAD, requires=CLAIMS)
def saved(bench: TrainBench) -> None:
    """A critic's folder starts a critic with the same weights and values, its head included."""
    folder = bench.folder / "critic"
    with bench.engine(head=Head.VALUE) as engine:
        engine.train_step(bench.batch(), ValueRegression())
        engine.save_weights(folder)
        wanted, values = bench.witnessed(engine), engine.forward(bench.batch(), VALUES).tokens["values"]
    with bench.engine(model=folder, head=Head.VALUE) as engine:
        same("weights of a critic started from its folder", bench.witnessed(engine), wanted)
        got = engine.forward(bench.batch(), VALUES).tokens["values"]
        close(bench, "values of a critic started from its folder", got, values, atol=2e-5)


@check("train.value.outputs", level=Level.SINGLE, law=8, spec=HEAD, requires=CLAIMS)
def outputs(bench: TrainBench) -> None:
    """A critic refuses log-probs and entropy, a language model refuses values, in `forward` and in `train_step`."""
    batch = bench.batch()
    wrong: dict[Head, tuple[list[set[Output]], Objective]] = {
        Head.VALUE: ([{Output.LOGPROBS}, {Output.ENTROPY}, {Output.VALUES, Output.LOGPROBS}], PolicyGradient()),
        Head.CAUSAL_LM: ([{Output.VALUES}, {Output.VALUES, Output.LOGPROBS}], ValueRegression()),
    }
    for head, (asked, objective) in wrong.items():
        with bench.engine(head=head) as engine:
            before = bench.witnessed(engine)
            for names in asked:
                what = f"{sorted(names)} of the {head} head"
                raises(CapabilityError, what, partial(engine.forward, batch, frozenset(names)))
            raises(
                CapabilityError,
                f"an objective on {sorted(objective.outputs)} with the {head} head",
                partial(engine.train_step, batch, objective),
            )
            same(f"weights of the {head} head after refusals", bench.witnessed(engine), before)


@check("train.refuse.values", level=Level.SINGLE, law=8, spec=HEAD)
def refuse_values(bench: TrainBench) -> None:
    """A language model has no values: asked for them, it raises a CapabilityError and returns nothing."""
    with bench.engine() as engine:
        raises(CapabilityError, "values of a language model", lambda: engine.forward(bench.batch(), VALUES))
