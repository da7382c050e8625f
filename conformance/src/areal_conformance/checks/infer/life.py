"""Start, cancel and close: what an engine says of itself, serves at first, refuses, lets go of and leaves behind.

Knows: calls that come too early or too late, callers in every state, and what a process holds.
Does not know: weights on their way when an engine closes (`faults`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file, save_file

from areal_conformance.benches.infer import LONG, ROOM, InferBench
from areal_conformance.benches.process import listening, num_descriptors, pooled_threads
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import expect_answered, expect_survivors, prompts, raises, telling
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, GenerationFailed, ModelError
from areal_core.contract.inference import PREFIX_HIT_SHARE, InferenceEngine, PauseMode
from areal_core.contract.weights import WeightSource


@check("infer.start.info", level=Level.SINGLE, law=0, spec="infer#start")
async def info(bench: InferBench) -> None:
    """`start` reports the device, the context and the number of parameters it really has, and rests as version 0."""
    for tied, context in ((False, 0), (True, 96)):
        folder = bench.model(tied=tied)
        weights = bench.weights(folder)
        engine = bench.new()
        told = await engine.start(bench.spec(model=folder, context_length=context))
        count = sum(tensor.numel() for tensor in weights.tensors.values())
        expect(told.num_parameters == count, f"the model has {count} parameters, start reports {told.num_parameters}")
        room = context or 8192
        expect(told.context_length == room, f"the context is {room} tokens, start reports {told.context_length}")
        expect(bool(told.engine) and bool(told.engine_version), f"engine and its version must be named, got {told}")
        device = bench.target.torch_type
        expect(device in told.device, f"asked to run on {device!r}, start reports {told.device!r}")
        status = await engine.status()
        seen = (status.version, status.num_running, status.num_waiting, status.paused, status.tokens_generated)
        expect(seen == (0, 0, 0, False, 0), f"a started engine rests as version 0, got {status}")
        await bench.generate(engine, bench.ask(5, 9, 7, 30, 12))
        hits = (await engine.status()).metrics.get(PREFIX_HIT_SHARE, 0.0)
        expect(hits == 0, f"one prompt was asked for since the start: {PREFIX_HIT_SHARE} must be 0, got {hits}")
        await engine.close()


@check("infer.start.serves_the_folder", level=Level.SINGLE, law=1, spec="infer#start")
async def serves_the_folder(bench: InferBench) -> None:
    """A started engine computes with the weights of its folder, for every kind of model, tied or not."""
    for kind in bench.target.adapter.models:
        for tied in (False, True):
            folder = bench.model(kind=kind, tied=tied, seed=3)
            async with bench.engine(model=folder, fresh=True) as engine:
                for request in bench.asks(prompts(3), name=f"{kind}-", temperature=1.0):
                    told = f"{kind}, {'tied' if tied else 'untied'}, request {request.request_id!r}"
                    await expect_answered(bench, engine, request, model=folder, told=told)


def _one_tensor_short(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


WEIGHTS = "model.safetensors"
UNFIT: dict[str, Callable[[Path], object]] = {
    "missing": shutil.rmtree,
    "empty": lambda folder: list(map(Path.unlink, folder.iterdir())),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "torn": lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1000]),
    "one tensor short": _one_tensor_short,
}
"""What is wrong with a folder -> what makes it so."""


@check("infer.start.unfit_folder", level=Level.SINGLE, law=8, spec="infer#start")
async def unfit_folder(bench: InferBench) -> None:
    """A folder that is missing, empty, torn or short of a tensor is refused with ModelError; close is fine then."""
    for what, spoil in UNFIT.items():
        folder = bench.folder / what.replace(" ", "-")
        shutil.copytree(bench.model(), folder)
        spoil(folder)
        engine = bench.new()
        spec = bench.spec(model=folder)
        await raises(ModelError, partial(engine.start, spec), f"start on a folder that is {what}")
        await engine.close()


@check("infer.start.context", level=Level.SINGLE, law=8, spec="infer#start")
async def context(bench: InferBench) -> None:
    """A context longer than the positions a model has is refused at the start: it knows nothing of what lies beyond."""
    engine = bench.new()
    spec = bench.spec(context_length=ROOM + 1)
    await raises(ArealError, partial(engine.start, spec), f"a context of {ROOM + 1} tokens, of {ROOM} positions,")
    await engine.close()


@check("infer.start.first", level=Level.SINGLE, law=5, spec="infer#start")
async def first(bench: InferBench) -> None:
    """Every call before `start` is refused with a typed error; `start` still works after."""
    engine = bench.new()
    source = bench.weights().offer(1)
    await raises(GenerationFailed, lambda: engine.generate(bench.ask(5)), "generate before start")
    for name, action in controls(engine, source).items():
        await raises(ArealError, action, f"{name} before start")
    await engine.start(bench.spec())
    await expect_answered(bench, engine, bench.ask(5, 9))


def controls(engine: InferenceEngine, source: WeightSource) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return calls that an engine which does not run refuses."""
    return {
        "pause": lambda: engine.pause(PauseMode.KEEP),
        "resume": engine.resume,
        "status": engine.status,
        "abort_weights": engine.abort_weights,
        "receive_weights": lambda: engine.receive_weights(source, 1),
        "commit_weights": lambda: engine.commit_weights(1),
    }


@check("infer.start.again", level=Level.SINGLE, law=10, spec="infer#start")
async def again(bench: InferBench) -> None:
    """A second engine in one process starts afresh: version 0, the folder's weights, nothing of the first."""
    request = bench.ask(7, 11, 13)
    one = bench.new()
    await one.start(bench.spec())
    for version in (1, 2):
        await bench.update(one, bench.weights().tell(telling(version)))
    await bench.generate(one, request)
    await one.pause(bench.resting)
    await one.close()
    two = bench.new()
    await two.start(bench.spec())
    status = await two.status()
    seen = (status.version, status.paused, status.tokens_generated)
    expect(seen == (0, False, 0), f"a new engine must start as version 0, not paused, no token made; got {status}")
    result = await expect_answered(bench, two, request)
    expect([span.version for span in result.version_spans] == [0], f"stamps must be 0, got {result.version_spans}")


SHARED = Path("/dev/shm")
LOOKS, LOOK_AGAIN_S = 20, 0.3
"""Threads and processes may take a moment to end after `close` returned."""


@check("infer.close.idempotent", level=Level.SINGLE, law=10, spec="infer#close")
async def idempotent(bench: InferBench) -> None:
    """`close` may come at any time and any number of times, also two at once, unstarted, or after a failed start."""
    unstarted = bench.new()
    await unstarted.close()
    await unstarted.close()
    failed = bench.new()
    await raises(ModelError, lambda: failed.start(bench.spec(model=bench.folder / "nowhere")), "start on no folder")
    await failed.close()
    await failed.close()
    engine = bench.new()
    await engine.start(bench.spec())
    await bench.generate(engine, bench.ask(5))
    closes = [bench.call(engine.close()) for _ in range(3)]
    for outcome in await bench.ended(closes, "three closes at once to return"):
        expect(outcome is None, f"close must return, raised {outcome!r}")
    await engine.close()


@check("infer.close.callers", level=Level.SINGLE, law=9, spec="infer#close")
async def callers(bench: InferBench) -> None:
    """`close` fails every waiting call with GenerationFailed: running, queued, and frozen by a pause."""
    for paused in (False, True):
        engine = bench.new()
        await engine.start(bench.spec(max_concurrent=2))
        requests = [bench.ask(5, 2 + n, name=f"r{n}", max_new_tokens=LONG) for n in range(5)]
        calls = bench.start(engine, requests)
        await bench.until_generated(engine, 6)
        if paused and bench.resting is PauseMode.KEEP:
            await engine.pause(bench.resting)
        late = bench.ask(6, 6, name="late", max_new_tokens=LONG)
        calls.append(bench.call(engine.generate(late)))
        await bench.turns(20)
        await engine.close()
        outcomes = await bench.ended(calls, f"callers to be told of close ({'paused' if paused else 'running'})")
        for number, outcome in enumerate(outcomes):
            told = f"call {number} of 6 ({'paused' if paused else 'running'}, max_concurrent 2) waited when close came"
            failed = isinstance(outcome, GenerationFailed)
            expect(failed, f"{told}: it must get GenerationFailed, got {outcome!r:.200}")


@check("infer.close.crossing", level=Level.SINGLE, law=9, spec="infer#close")
async def crossing(bench: InferBench) -> None:
    """Calls that cross `close`, made before it or after it in one turn, come to an end: an answer, or an error."""
    for first in (False, True):
        engine = bench.new()
        await engine.start(bench.spec())
        running = bench.call(engine.generate(bench.ask(5, 9, name="running", max_new_tokens=LONG)))
        await bench.until_generated(engine, 3)
        made: list[Coroutine[Any, Any, object]] = [engine.pause(bench.resting), engine.resume(), engine.status()]
        made += [engine.abort_weights(), engine.commit_weights(0), engine.generate(bench.ask(6, max_new_tokens=LONG))]
        made.insert(0 if first else len(made), engine.close())
        calls: list[asyncio.Task[Any]] = [running, *map(bench.call, made)]
        outcomes = await bench.ended(calls, f"calls made {'after' if first else 'before'} close in one turn to end")
        for number, outcome in enumerate(outcomes):
            gone = isinstance(outcome, asyncio.CancelledError)
            expect(not gone, f"call {number} of those that cross close was cancelled: nobody had cancelled it")


@check("infer.close.after", level=Level.SINGLE, law=10, spec="infer#close")
async def after(bench: InferBench) -> None:
    """A closed engine refuses every call at once, typed."""
    engine = bench.new()
    await engine.start(bench.spec())
    await engine.close()
    source = bench.weights().offer(1)
    call = bench.call(raises(GenerationFailed, lambda: engine.generate(bench.ask(5)), "generate after close"))
    refused = [raises(ArealError, act, f"{name} after close") for name, act in controls(engine, source).items()]
    calls = [call, *map(bench.call, refused)]
    for outcome in await bench.ended(calls, "calls to a closed engine to be refused"):
        if isinstance(outcome, BaseException) and not isinstance(outcome, ArealError):
            raise outcome


def _segments() -> set[str]:
    """Return the shared segments that this process and its children have mapped now; not those of strangers."""
    me = psutil.Process()
    names = set()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            names |= {line.split()[-1] for line in lines if str(SHARED) in line and not line.endswith("(deleted)")}
    return names


class Held:
    """What this process and its children hold now. `seen` are segments they had mapped at some time."""

    def __init__(self, seen: set[str]) -> None:
        gc.collect()
        process = psutil.Process()
        family = process.children(recursive=True)
        self.threads = process.num_threads() - pooled_threads()
        self.children = len(family)
        self.descriptors = num_descriptors(process)
        self.ports = len(listening())
        self.segments = sum(Path(name).exists() for name in seen)

    def more_than(self, other: Held) -> str:
        """Tell what is held beyond `other`, "" if nothing."""
        return ", ".join(
            f"{mine} {name} after, {theirs} before"
            for name, mine in vars(self).items()
            if mine > (theirs := getattr(other, name))
        )


async def _life(bench: InferBench, round_number: int) -> set[str]:
    """One whole life of an engine, closed while a request runs and weights are staged; return its segments."""
    engine: InferenceEngine = bench.new()
    await engine.start(bench.spec(max_concurrent=2))
    await bench.update(engine, bench.weights())
    long = [bench.call(engine.generate(bench.ask(5, n, max_new_tokens=LONG))) for n in (3, 4, 5)]
    await bench.until_generated(engine, 4)
    if round_number % 2 and bench.target.claimed("weights.staged"):
        await engine.receive_weights(bench.weights().offer(9), 9)
    segments = _segments()
    await engine.close()
    await bench.ended(long, "callers to be told of close")
    return segments


@check("infer.close.leaves_nothing", level=Level.SINGLE, law=10, spec="infer#close")
async def leaves_nothing(bench: InferBench) -> None:
    """Engine after engine is started and closed: no thread, process, descriptor, port or segment stays behind."""
    seen = await _life(bench, 0) | await _life(bench, 1)
    before = Held(seen)
    for number in range(4):
        seen |= await _life(bench, number)
    left = Held(seen).more_than(before)
    for _ in range(round(LOOKS * bench.target.adapter.patience)):
        if not left:
            return
        await asyncio.sleep(LOOK_AGAIN_S)
        left = Held(seen).more_than(before)
    expect(not left, f"four engines were started and closed, and this is left: {left}")


@check("infer.cancel.frees_slot", level=Level.SINGLE, law=10, spec="infer#generate")
async def frees_slot(bench: InferBench) -> None:
    """Cancelling a running or queued `generate` frees its place for the next, and `status` shows it."""
    async with bench.engine(max_concurrent=1) as engine:
        stuck = bench.call(engine.generate(bench.ask(5, 9, name="running", max_new_tokens=LONG)))
        queued = bench.call(engine.generate(bench.ask(6, 9, name="queued", max_new_tokens=LONG)))
        await bench.until_generated(engine, 4)
        queued.cancel()
        stuck.cancel()
        await expect_answered(bench, engine, bench.ask(7, 9, name="next"))
        await bench.until_shown(engine, 0, 0, "after all were cancelled or done")
        made = (await engine.status()).tokens_generated
        await bench.turns()
        more = (await engine.status()).tokens_generated - made
        expect(more == 0, f"nobody asks for tokens, yet {more} were generated: a cancelled request is still computed")


@check("infer.cancel.leaves_others", level=Level.SINGLE, law=1, spec="infer#generate")
async def leaves_others(bench: InferBench) -> None:
    """Cancelling some of many requests changes no token of the others, and what comes after is right too."""
    doomed = (0, 5, 7, 11, 6)
    async with bench.engine() as engine:
        lengths = [LONG if number in doomed else 60 for number in range(12)]
        requests = bench.asks(prompts(12), temperature=[0.0, 1.0], max_new_tokens=lengths)
        calls = bench.start(engine, requests)
        for number in doomed:  # which still run then, however fast the engine is
            await bench.until_generated(engine, 12)
            calls[number].cancel()
        more = bench.asks(prompts(6, seed=1), name="m", max_new_tokens=20)
        calls += bench.start(engine, more)
        outcomes = await bench.ended(calls, "the requests that were not cancelled")
    expect_survivors(bench, outcomes, [*requests, *more])
