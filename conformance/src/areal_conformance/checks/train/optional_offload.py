"""Claim `memory.offload`: the memory is really given back, and nothing else changes.

Knows: live memory of the device, what a step computes before and after.
Does not know: where an engine keeps what it moved away.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.memory import held_bytes, of_newcomers
from areal_conformance.oracles.spoil import files_at_most
from areal_conformance.oracles.train_compare import same
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError
from areal_core.contract.optional import SupportsOffload
from areal_core.contract.train import LoraSpec, OptimizerSpec, Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

CLAIM = ("memory.offload",)
rule = partial(check, level=Level.SINGLE, spec="train#offload", requires=CLAIM, since=(1, 1))
LOGPROBS = frozenset({Output.LOGPROBS})
STEADY = OptimizerSpec(lr=1e-2, weight_decay=0.1, schedule="linear", total_steps=9)
ADAPTER = LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "v_proj"))
_SHARE = 0.9
"""Part of weights and both moments, in float32, that must be gone: buffers may stay."""


@rule("train.offload.exact", law=4)
def exact(bench: TrainBench) -> None:
    """Training that is offloaded and brought back between any two steps gives the same bits as training that is not."""
    orders: tuple[tuple[str, ...], ...] = (
        (),
        ("offload", "onload"),
        ("offload", "offload", "onload", "onload"),
        ("onload",),
    )
    found = []
    for order in orders:
        with bench.engine(*CLAIM, optimizer=STEADY) as engine:
            reports = []
            for step in range(4):
                _call(engine, order)
                report = engine.train_step(bench.batch(seed=step), PolicyGradient())
                reports.append((report.loss, report.grad_norm, report.lr, report.stepped))
                _call(engine, order)
            engine.version = 4
            _call(engine, order)
            expect(engine.version == 4, f"the version is {engine.version} after {order}, 4 was set")
            column = engine.forward(bench.batch(seed=50), LOGPROBS).tokens["logprobs"]
            found.append((reports, bench.sent(engine, 4), column))
    for order, (reports, sent, column) in zip(orders[1:], found[1:], strict=True):
        expect(reports == found[0][0], f"steps with {order} between them: expected {found[0][0]}, got {reports}")
        same(f"weights after four steps with {order} between them", sent, found[0][1])
        same(f"scores after four steps with {order} between them", {"logprobs": column}, {"logprobs": found[0][2]})


@rule("train.offload.full", level=Level.FAULTS, law=10)
def full(bench: TrainBench) -> None:
    """Where there is no room to move to, `offload` says so and moves nothing: the engine goes on with what it has."""
    with bench.engine(*CLAIM, optimizer=STEADY) as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        held = bench.sent(engine)
        for limit in (100, 16 << 10):
            with files_at_most(limit):
                try:
                    _call(engine, ("offload",))
                except ArealError:
                    same(f"weights after no file could have {limit} bytes", bench.sent(engine), held)
                else:
                    bench.notes.append("what is moved away goes where no disk can be full")
            _call(engine, ("onload", "offload", "onload"))
            same("weights that were moved after there was no room", bench.sent(engine), held)


@rule("train.offload.frees", law=10)
@of_newcomers()
def frees(bench: TrainBench) -> None:
    """`offload` frees the memory of weights and optimizer, of those below an adapter too, and each time, not once."""
    device = bench.target.torch_type
    model = bench.model(hidden=128)
    for lora, kept in ((None, 3), (ADAPTER, 1))[: 1 + bench.target.claimed("lora")]:
        claims = CLAIM if lora is None else (*CLAIM, "lora")
        with bench.engine(*claims, model=model, optimizer=STEADY, lora=lora) as engine:
            assert bench.info is not None
            wanted = 4 * kept * bench.info.num_parameters
            for turn in range(2):
                engine.train_step(bench.batch(seed=turn), PolicyGradient())
                before = held_bytes(device)
                _call(engine, ("offload",))
                freed = before - held_bytes(device)
                what = "weights and two moments" if lora is None else "the weights below the adapter"
                told = f"offload number {turn + 1} freed {freed} bytes on {device}; {what} are {wanted}"
                expect(freed >= _SHARE * wanted, told)
                _call(engine, ("onload",))


@rule("train.offload.frozen", law=4)
@of_newcomers()
def frozen(bench: TrainBench) -> None:
    """A frozen role, which has no optimizer, is offloaded as well, and scores as before."""
    device = bench.target.torch_type
    model = bench.model(hidden=128)
    with bench.engine(*CLAIM, model=model, optimizer=None) as engine:
        assert bench.info is not None
        before = engine.forward(bench.batch(), LOGPROBS).tokens["logprobs"]
        held = held_bytes(device)
        _call(engine, ("offload",))
        freed, wanted = held - held_bytes(device), 4 * bench.info.num_parameters
        expect(freed >= _SHARE * wanted, f"offload freed {freed} bytes on {device}; the weights are {wanted}")
        _call(engine, ("onload",))
        after = engine.forward(bench.batch(), LOGPROBS).tokens["logprobs"]
    same("scores of a frozen role after offload and onload", {"logprobs": after}, {"logprobs": before})


@rule("train.offload.state", law=4, requires=("memory.offload", "checkpoint.exact"))
def state(bench: TrainBench) -> None:
    """A state loaded after a turn on the host is used, and not the one that was moved away before."""
    early, late = bench.folder / "early", bench.folder / "late"
    with bench.engine(*CLAIM, optimizer=STEADY) as engine:
        _call(engine, ("offload", "onload"))
        engine.train_step(bench.batch(seed=1), PolicyGradient())
        engine.save_state(early)
        saved = bench.sent(engine, 1)
        _call(engine, ("offload", "onload"))
        engine.save_state(late)
        norm = engine.train_step(bench.batch(seed=2), PolicyGradient()).grad_norm
        stepped = bench.sent(engine, 2)
        for path in (early, late):
            _call(engine, ("offload", "onload"))
            engine.load_state(path)
            same(f"weights of the {path.name} state", bench.sent(engine, 1), saved)
            _call(engine, ("offload", "onload"))
            same(f"weights of the {path.name} state, moved away and back", bench.sent(engine, 1), saved)
            got = engine.train_step(bench.batch(seed=2), PolicyGradient()).grad_norm
            expect(got == norm, f"the gradient norm after the {path.name} state: expected {norm}, got {got}")
            same(f"weights a step after the {path.name} state", bench.sent(engine, 2), stepped)


@rule("train.offload.use", law=8)
def use(bench: TrainBench) -> None:
    """A call while offloaded is refused with a typed error or answered rightly; it never computes with nothing."""
    batch = bench.batch(seed=5)
    with bench.engine(*CLAIM, optimizer=STEADY) as engine:
        engine.train_step(bench.batch(seed=1), PolicyGradient())
        sent = bench.sent(engine, 1)
        scores = engine.forward(batch, LOGPROBS).tokens["logprobs"]
        calls: dict[str, tuple[Callable[[], Any], Any]] = {  # Any: dicts of tensors
            "forward": (lambda: {"logprobs": engine.forward(batch, LOGPROBS).tokens["logprobs"]}, {"logprobs": scores}),
            "send_weights": (lambda: bench.sent(engine, 1), sent),
        }
        for name, (call, wanted) in calls.items():
            _call(engine, ("offload",))
            try:
                got = call()
            except ArealError as error:
                expect(error.why or error.fix, f"{name} while offloaded is refused without a reason: {error.what}")
            else:
                same(f"what {name} gave while offloaded", got, wanted)
            _call(engine, ("onload",))
        _call(engine, ("offload",))
        try:
            engine.train_step(bench.batch(seed=2), PolicyGradient())
            steps = [3]
        except ArealError:
            steps = [2, 3]
        _call(engine, ("onload",))
        for step in steps:
            engine.train_step(bench.batch(seed=step), PolicyGradient())
        after = bench.sent(engine, 3)
    with bench.engine(*CLAIM, optimizer=STEADY) as engine:
        for step in (1, 2, 3):
            engine.train_step(bench.batch(seed=step), PolicyGradient())
        same("weights after steps 1 to 3, the second of them first tried while offloaded", after, bench.sent(engine, 3))


@rule("train.offload.close", law=10)
def close(bench: TrainBench) -> None:
    """An offloaded engine closes, twice, and the next engine of the process starts and steps."""
    with bench.engine(*CLAIM, optimizer=STEADY) as engine:
        engine.train_step(bench.batch(seed=1), PolicyGradient())
        _call(engine, ("offload",))
        engine.close()
        engine.close()
    with bench.engine(*CLAIM, optimizer=STEADY) as engine:
        expect(engine.train_step(bench.batch(seed=1), PolicyGradient()).stepped, "the engine started next did not step")


def _call(engine: TrainEngine, order: tuple[str, ...]) -> None:
    able: SupportsOffload = engine  # type: ignore[assignment]  # claimed, and `static.claims.protocols` looks
    for name in order:
        (able.offload if name == "offload" else able.onload)()
