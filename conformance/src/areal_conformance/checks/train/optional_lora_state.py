"""Claim `lora`: what must not disturb an adapter: sending, saving, being saved and loaded.

Knows: which calls may change nothing, and what a saved state must bring back.
Does not know: whether the numbers are right (`optional_lora`).
"""

from __future__ import annotations

from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.optional_lora import CLAIM, LOGPROBS, QUICK, SPEC, base_of
from areal_conformance.oracles.train_compare import close, raises, same
from areal_conformance.outcome import expect
from areal_core.contract.errors import CheckpointError
from areal_core.contract.train import LoraSpec, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

ADAPTER = LoraSpec(rank=3, alpha=9.0, targets=("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"))


@check("train.lora.send_disturbs_nothing", level=Level.SINGLE, law=7, spec=SPEC, requires=CLAIM, since=(1, 1))
def send_disturbs_nothing(bench: TrainBench) -> None:
    """Merging for a send or a folder leaves the training as it is: scores, sends and steps keep their bits."""
    found = []
    for sends in (False, True):
        with bench.engine("lora", lora=ADAPTER, optimizer=QUICK) as engine:
            _step(bench, engine, 1)
            if sends:
                before = _scores(bench, engine)
                first = bench.sent(engine, 1)
                engine.save_weights(bench.folder / "model")
                same("weights sent twice", bench.sent(engine, 2), first)
                same(
                    "scores after merged weights were sent", {"logprobs": _scores(bench, engine)}, {"logprobs": before}
                )
            norms = [_step(bench, engine, step) for step in (2, 3)]
            found.append((norms, bench.sent(engine, 3)))
    expect(found[0][0] == found[1][0], f"gradient norms after a send: expected {found[0][0]}, got {found[1][0]}")
    same("weights two steps after a send, with and without it", found[1][1], found[0][1])


@check("train.lora.folder", level=Level.SINGLE, law=7, spec=SPEC, requires=CLAIM, since=(1, 1))
def folder(bench: TrainBench) -> None:
    """`save_weights` writes the merged model under the model's own names, the same bits that are sent."""
    with bench.engine("lora", lora=ADAPTER, optimizer=QUICK) as engine:
        _step(bench, engine, 1)
        sent, scores = bench.sent(engine, 1), _scores(bench, engine)
        engine.save_weights(bench.folder / "model")
    same("tensors of the folder, and sent", base_of(bench.folder / "model"), sent)
    with bench.engine(model=bench.folder / "model", optimizer=None) as engine:
        loaded = _scores(bench, engine)
    close(bench, "log-probs of a model loaded from the merged folder", loaded, scores, atol=3e-4)


@check("train.lora.state", level=Level.SINGLE, law=4, spec=SPEC, requires=("lora", "checkpoint.exact"), since=(1, 1))
def state(bench: TrainBench) -> None:
    """A saved state brings the adapter back exactly: in the same engine, and in one that drew another A."""
    path = bench.folder / "state"
    with bench.engine("lora", lora=ADAPTER, optimizer=QUICK, seed=1) as engine:
        for step in (1, 2):
            _step(bench, engine, step)
        engine.version = 2
        engine.save_state(path)
        saved = bench.sent(engine, 2)
        norms = [_step(bench, engine, step) for step in (3, 4)]
        wanted = bench.sent(engine, 4)
        engine.load_state(path)
        _continues(bench, engine, saved, norms, wanted, "in the engine that saved it")
    for number, steps in ((5, 0), (6, 3)):
        with bench.engine("lora", lora=ADAPTER, optimizer=QUICK, seed=number) as engine:
            for step in range(steps):
                _step(bench, engine, 10 + step)
            engine.load_state(path)
            expect(engine.version == 2, f"the version loaded is {engine.version}, 2 was saved")
            same("weights sent by an engine that loaded a state", bench.sent(engine, 2), saved)
            engine.load_state(path)
            _continues(bench, engine, saved, norms, wanted, f"in an engine of seed {number} after {steps} steps")


@check(
    "train.lora.state_of_another",
    level=Level.SINGLE,
    law=4,
    spec=SPEC,
    requires=("lora", "checkpoint.exact"),
    since=(1, 1),
)
def state_of_another(bench: TrainBench) -> None:
    """A state saved with another adapter, or with none, is refused and changes nothing."""
    other = LoraSpec(rank=2, alpha=9.0, targets=ADAPTER.targets)
    elsewhere = LoraSpec(rank=3, alpha=9.0, targets=("q_proj", "v_proj"))
    for number, lora in enumerate((other, elsewhere, None)):
        with bench.engine("lora", lora=lora, optimizer=QUICK) as engine:
            _step(bench, engine, 1)
            engine.save_state(bench.folder / f"state-{number}")
    with bench.engine("lora", lora=ADAPTER, optimizer=QUICK) as engine:
        _step(bench, engine, 1)
        before = bench.sent(engine, 1)
        for number, lora in enumerate((other, elsewhere, None)):
            path = bench.folder / f"state-{number}"
            raises(CheckpointError, f"a state of {lora} for {ADAPTER}", lambda path=path: engine.load_state(path))  # type: ignore[misc]
            same(f"weights after a state of {lora} was refused", bench.sent(engine, 1), before)


def _continues(
    bench: TrainBench,
    engine: TrainEngine,
    saved: dict[str, Tensor],
    norms: list[float],
    wanted: dict[str, Tensor],
    where: str,
) -> None:
    same(f"weights sent after load_state {where}", bench.sent(engine, 2), saved)
    got = [_step(bench, engine, step) for step in (3, 4)]
    expect(got == norms, f"gradient norms of two steps {where}: expected {norms}, got {got}")
    same(f"weights two steps after load_state {where}", bench.sent(engine, 4), wanted)


def _step(bench: TrainBench, engine: TrainEngine, number: int) -> float:
    return engine.train_step(bench.batch(seed=number), PolicyGradient()).grad_norm


def _scores(bench: TrainBench, engine: TrainEngine) -> Tensor:
    column: Tensor = engine.forward(bench.batch(seed=77), LOGPROBS).tokens["logprobs"]
    return column
