"""The life of an engine: calls at the wrong time, closing, starting again, and frozen roles.

Knows: every method of the contract, and what a process holds.
Does not know: numbers.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed

from areal_conformance.benches.base import SOON_S
from areal_conformance.benches.process import listening, num_descriptors
from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.memory import held_bytes, of_newcomers
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, same
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import ArealError
from areal_core.contract.train import OptimizerSpec, Output, TrainEngine
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#areal_core.contract.train.TrainEngine"
CLOSE = "train#areal_core.contract.train.TrainEngine.close"
LOGPROBS = frozenset({Output.LOGPROBS})


def calls(bench: TrainBench, engine: TrainEngine) -> dict[str, Callable[[], Any]]:
    """Return a call of every method that needs a model. Any: what they return is not looked at."""
    folder = bench.folder
    return {
        "forward": lambda: engine.forward(bench.batch([(2, 3)]), LOGPROBS),
        "train_step": lambda: engine.train_step(bench.batch([(2, 3)]), PolicyGradient()),
        "send_weights": lambda: engine.send_weights(MemorySink(), 1),
        "save_weights": lambda: engine.save_weights(folder / "too-early-weights"),
        "save_state": lambda: engine.save_state(folder / "too-early-state"),
        "load_state": lambda: engine.load_state(folder / "nowhere"),
    }


@check("train.calls.before_start", level=Level.SINGLE, law=10, spec=SPEC)
def before_start(bench: TrainBench) -> None:
    """Before `start` every call is an error of ours, and `close` does nothing."""
    engine = bench.fresh()
    for name, call in calls(bench, engine).items():
        raises(ArealError, f"{name} before start", call)
    engine.close()
    engine.close()
    expect(not list(bench.folder.iterdir()), f"calls before start wrote {list(bench.folder.iterdir())}")


@check("train.calls.after_close", level=Level.SINGLE, law=10, spec=CLOSE)
def after_close(bench: TrainBench) -> None:
    """After `close` every call is an error of ours, and `close` can be called again."""
    with bench.engine() as engine:
        engine.forward(bench.batch([(2, 3)]), LOGPROBS)
        engine.close()
        for _ in range(2):
            for name, call in calls(bench, engine).items():
                raises(ArealError, f"{name} after close", call)
            engine.close()
    expect(not list(bench.folder.iterdir()), f"calls after close wrote {list(bench.folder.iterdir())}")


@check("train.close.again", level=Level.SINGLE, law=10, spec=CLOSE)
def again(bench: TrainBench) -> None:
    """After `close` another engine starts in the same process, four times over, and gives the same bits."""
    results = []
    for _ in range(4):
        with bench.engine() as engine:
            engine.train_step(bench.batch(), PolicyGradient())
            results.append(bench.witnessed(engine))
    for number, result in enumerate(results[1:], start=2):
        same(f"weights after one step of engine {number} of this process", result, results[0])


@check("train.close.lets_go", level=Level.SINGLE, law=10, spec=CLOSE)
@of_newcomers()
def lets_go(bench: TrainBench) -> None:
    """`close` leaves nothing behind: no process group, descriptor, thread, process, port, or tensor of the model."""
    me = psutil.Process()

    def held() -> dict[str, int]:
        gc.collect()  # what others left in this process goes now, not between two counts
        ports.append(listening())
        return {
            "open files and sockets": num_descriptors(me),
            "threads": threading.active_count(),
            "processes": len(me.children(recursive=True)),
            "kilobytes of tensors": held_bytes(bench.target.torch_type) // 1000,
        }

    batch = bench.batch()
    kept, counts = [], []
    ports: list[set[tuple[str, int]]] = []
    for number in range(4):
        with bench.engine() as engine:
            engine.train_step(batch, PolicyGradient())
            engine.forward(batch, LOGPROBS)
            bench.sent(engine)
        kept.append(engine)  # whoever still holds a closed engine holds no model
        if number % 2:
            counts.append(held())
        expect(not torch.distributed.is_initialized(), "after close the process is still in a process group")
    first, last, deadline = counts[0], counts[-1], bench.deadline(SOON_S)

    def more() -> dict[str, tuple[int, int]]:
        slack = {"kilobytes of tensors": 50}
        return {name: (first[name], last[name]) for name in first if last[name] > first[name] + slack.get(name, 0)}

    while (more() or not ports[-1] <= ports[0]) and deadline.left():  # what ends just now holds it for a moment
        time.sleep(0.05)
        last = held()
    expect(not more(), f"held after two engines were closed, and after four: {more()}")
    expect(ports[-1] <= ports[0], f"the engines closed last still listen at {sorted(ports[-1] - ports[0])}")


@check("train.start.failed", level=Level.SINGLE, law=10, spec="train#areal_core.contract.train.TrainEngine.start")
def failed_start(bench: TrainBench) -> None:
    """A start that failed leaves nothing in the way: after it calls are errors of ours, and the next engine starts."""
    for _ in range(2):
        engine = bench.fresh()
        spec = bench.spec(model=bench.folder / "nowhere")
        raises(ArealError, "start with no model", partial(engine.start, spec, bench.rank_context()))
        raises(ArealError, "forward after a failed start", partial(engine.forward, bench.batch([(2, 3)]), LOGPROBS))
        with bench.engine() as other:  # the one that failed was not even closed
            other.forward(bench.batch([(2, 3)]), LOGPROBS)
        engine.close()


@check("train.frozen.role", level=Level.SINGLE, law=8, spec="train#areal_core.contract.train.TrainSpec")
def frozen_role(bench: TrainBench) -> None:
    """A role without optimizer scores as one with it, sends, saves and comes back; it refuses to make a step."""
    batch = bench.batch()
    for dtype in bench.target.adapter.dtypes:
        found = []
        for optimizer in (OptimizerSpec(), None):
            cold = bench.engine(optimizer=optimizer, dtype=dtype, temperature=0.6, max_tokens_per_microbatch=20)
            with cold as engine:
                found.append(engine.forward(batch, LOGPROBS).tokens["logprobs"])
        close(bench, f"logprobs of a frozen role in {dtype}, beside one that trains", found[1], found[0], atol=1e-5)
    wanted = Oracle(bench.model()).columns(batch)[Output.LOGPROBS]
    with bench.engine(optimizer=None) as engine:
        before = bench.witnessed(engine)
        raises(ArealError, "train_step of a frozen role", lambda: engine.train_step(batch, PolicyGradient()))
        got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
        close(bench, "logprobs of a frozen role", got, wanted, atol=5e-5)
        engine.version = 3
        engine.save_state(bench.folder / "frozen")
        engine.version = 4
        engine.load_state(bench.folder / "frozen")
        expect(engine.version == 3, f"a frozen role came back with version {engine.version}, saved with 3")
        same("weights of a frozen role", bench.witnessed(engine), before)
        same("what a frozen role sends", bench.sent(engine), before)
