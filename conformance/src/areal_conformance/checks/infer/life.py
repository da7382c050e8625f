"""Start: what an engine says of itself, what it refuses to start on, and what it serves at first.

Knows: `start`, and calls that come too early.
Does not know: `close` (its own module).
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from safetensors.torch import load_file, save_file

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import expect_answered, prompts, raises, telling
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, GenerationFailed, ModelError
from areal_core.contract.inference import InferenceEngine, PauseMode
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
