"""Errors: what an engine raises arrives typed, with all its texts, at its own caller, and nothing else breaks.

Knows: contract errors, everybody else's, and values that do not travel.
Does not know: how an exception is written down.
"""

from __future__ import annotations

import asyncio
import pickle

from areal_conformance.benches.scheduler import SchedulerBench, ask
from areal_conformance.benches.scheduler_values import every_error
from areal_conformance.check import Level, check
from areal_conformance.checks.scheduler.anchors import CALL
from areal_conformance.outcome import HarnessError, expect
from areal_conformance.probes.engine import Trap
from areal_core.contract.errors import ArealError, PromptTooLong, RemoteError

_FOREIGN = {
    "own": ("OwnError", "left 3, right 4", "_do"),
    "key": ("KeyError", "a key that is not there", "_do"),
    "surrogate": ("ZeroDivisionError", "no tokens", "_do"),
    "group": ("ExceptionGroup", "two at once", "_do"),
    "empty": ("RuntimeError", "", "_do"),
    "deep": ("ArithmeticError", "deep inside", "_at_the_bottom"),
}
"""Kind -> type, words, and the function that raises; that of `deep` is a dozen calls below the engine's own."""


@check("scheduler.errors.contract", level=Level.SINGLE, law=5, spec=CALL)
async def contract(bench: SchedulerBench) -> None:
    """Every error of the contract arrives as itself: the same class, what, why and fix."""
    worker = await bench.worker()
    for sent in every_error():
        work = ask(worker, "raise", kind="given", error=sent)
        error = await bench.raised(type(sent), work, f"an engine's {type(sent).__name__}")
        expect(type(error) is type(sent), f"{type(sent).__name__} arrived as {type(error).__name__}: {error}")
        texts = [(one.what, one.why, one.fix) for one in (sent, error)]
        expect(texts[0] == texts[1], f"the texts {texts[0]} arrived as {texts[1]}")
    expect((await ask(worker, "echo", value=5))["value"] == 5, "the worker is of no use after errors")


@check("scheduler.errors.own_kind", level=Level.SINGLE, law=5, spec=CALL)
async def own_kind(bench: SchedulerBench) -> None:
    """A plugin's own kind of a contract error arrives as the contract error it is, with its texts."""
    work = ask(await bench.worker(), "raise", kind="own areal")
    error = await bench.raised(PromptTooLong, work, "an engine's own kind")
    texts = (error.what, error.why, error.fix)
    expect(texts == ("much too long", "9 > 8", "shorten it"), f"its texts arrived as {texts}")


@check("scheduler.errors.foreign", level=Level.SINGLE, law=5, spec=CALL)
async def foreign(bench: SchedulerBench) -> None:
    """Any other exception arrives as RemoteError, with its type, its message and where it was raised, however deep."""
    worker = await bench.worker()
    for kind, (name, words, where) in _FOREIGN.items():
        work = ask(worker, "raise", kind=kind)
        await bench.raised(RemoteError, work, f"an engine's {name}", name, words, "probes/engine.py", where)
    expect((await ask(worker, "echo", value=5))["value"] == 5, "the worker is of no use after errors")


@check("scheduler.errors.cancelled_itself", level=Level.SINGLE, law=5, spec=CALL)
async def cancelled_itself(bench: SchedulerBench) -> None:
    """An engine that cancels itself fails its call; the caller is not told that it was cancelled."""
    worker = await bench.worker()
    await bench.raised(ArealError, ask(worker, "cancel itself"), "an engine that cancels itself")
    expect((await ask(worker, "echo", value=5))["value"] == 5, "the worker is of no use afterwards")


@check("scheduler.errors.not_unpickled", level=Level.SINGLE, law=11, spec=CALL)
async def not_unpickled(bench: SchedulerBench) -> None:
    """What is neither contract type nor plain data is refused in both directions, and never unpickled."""
    worker = await bench.worker()
    here, there = bench.folder / "unpickled there", bench.folder / "unpickled here"
    await bench.raised(ArealError, ask(worker, "echo", value=Trap(str(here))), "sending an object of no contract type")
    await bench.raised(ArealError, ask(worker, "trap", path=str(there)), "an engine's result of no contract type")
    expect(not here.exists(), "an argument was unpickled in the worker")
    expect(not there.exists(), "a result was unpickled in the controller")
    expect((await ask(worker, "echo", value=5))["value"] == 5, "the worker is of no use afterwards")
    pickle.loads(pickle.dumps(Trap(str(here))))
    if not here.exists():
        raise HarnessError("the trap does not work: unpickling it leaves no trace")


@check("scheduler.errors.one_call_only", level=Level.SINGLE, law=5, spec=CALL)
async def one_call_only(bench: SchedulerBench) -> None:
    """A call that fails fails alone: calls of the same worker that wait get their own replies."""

    worker = await bench.worker()
    waiting = [bench.doing(ask(worker, "wait", gate=f"alone {number}")) for number in range(3)]
    for kind in ("own", "own areal", "key"):
        await bench.raised(ArealError, ask(worker, "raise", kind=kind), "an engine's error")
        expect(not any(task.done() for task in waiting), "a call that waits ended with another call's error")
    for number in range(3):
        await ask(worker, "open", gate=f"alone {number}")
    ends = await bench.soon(asyncio.gather(*waiting), "calls whose gates were opened")
    expect([end["gate"] for end in ends] == [f"alone {n}" for n in range(3)], f"waiting calls got {ends}")
