"""What `send_weights` does when the way is bad: flipped bits, lost and invented tensors, sinks that raise.

Knows: sinks that spoil, lie and raise.
Does not know: transports; they have checks of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.train_compare import raises, same
from areal_conformance.oracles.train_sinks import LyingSink, RaisingSink, RecordingSink
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError, CoverageError, FingerprintMismatch, StorageError, WeightSyncError
from areal_core.contract.train import TrainEngine
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#areal_core.contract.train.TrainEngine.send_weights"


def fails(engine: TrainEngine, sink: RecordingSink, kind: type[ArealError], what: str) -> None:
    """Expect sending to this sink to raise, and the sink to be aborted last."""
    raises(kind, what, lambda: engine.send_weights(sink, 5))
    expect(sink.calls[-1:] == ["abort"], f"{what}: the sink was not aborted after the error; calls {sink.calls}")


@check("train.send.flipped", level=Level.SINGLE, law=7, spec=SPEC)
def flipped(bench: TrainBench) -> None:
    """One bit flipped in any one tensor is a FingerprintMismatch, and the sink is aborted."""
    with bench.engine() as engine:
        good = bench.sent(engine)
        names = list(good)
        for target in (names[0], names[len(names) // 2], names[-1]):

            def spoil(name: str, tensor: Tensor, target: str = target) -> Tensor:
                if name == target:
                    tensor.view(torch.uint8).view(-1)[-1] ^= 1
                return tensor

            fails(engine, RecordingSink(20_000, spoil), FingerprintMismatch, f"a bit flipped in {target}")
        same("sent after three failures", bench.sent(engine), good)


@check("train.send.coverage", level=Level.SINGLE, law=7, spec=SPEC)
def coverage(bench: TrainBench) -> None:
    """A receipt that lacks a tensor or names another one is an error, and the sink is aborted."""
    with bench.engine() as engine:
        good = bench.sent(engine)
        last = list(good)[-1]

        def lost(told: dict[str, str]) -> dict[str, str]:
            return {name: value for name, value in told.items() if name != last}

        def more(told: dict[str, str]) -> dict[str, str]:
            return {**told, "model.extra.weight": next(iter(told.values()))}

        fails(engine, LyingSink(lost), CoverageError, f"a receipt without {last}")
        fails(engine, LyingSink(more), CoverageError, "a receipt with a tensor that was not sent")
        fails(engine, LyingSink(lambda told: {}), WeightSyncError, "an empty receipt")
        same("sent after three failures", bench.sent(engine), good)


@check("train.send.raising_sink", level=Level.FAULTS, law=7, spec=SPEC)
def raising_sink(bench: TrainBench) -> None:
    """What a sink raises, at whatever call, is heard as it is; the sink is aborted; sending again works."""
    with bench.engine() as engine:
        places: tuple[str | int, ...] = ("begin", 0, 1, 3, "finish")
        for number, place in enumerate(places):
            for error in (StorageError("no room", why="a test"), CoverageError("not announced", why="a test")):
                sink = RaisingSink(place, error)
                fails(engine, sink, type(error), f"a sink that raises {type(error).__name__} at {place}")
                expect(
                    sink.calls.count("finish") == (1 if place == "finish" else 0),
                    f"after the error at {place} the sink was finished: {sink.calls}",
                )
            held = bench.witnessed(engine)
            same(f"sent after a failure at {place}", bench.sent(engine, version=number + 1), held)
            engine.train_step(bench.batch(seed=number), PolicyGradient())


@check("train.send.foreign_error", level=Level.FAULTS, law=7, spec=SPEC)
def foreign_error(bench: TrainBench) -> None:
    """An error of a sink that is none of ours is heard too, and the sink is aborted."""
    with bench.engine() as engine:
        for place in ("begin", 1, "finish"):
            sink = RaisingSink(place, ConnectionResetError("by the other side"))
            try:
                engine.send_weights(sink, 2)
            except Exception as error:
                expect("by the other side" in str(error), f"the error does not tell the sink's: {error}")
            else:
                raise Violation(f"a sink raised at {place} and nobody heard it")
            expect(sink.calls[-1:] == ["abort"], f"the sink was not aborted after an error at {place}: {sink.calls}")
