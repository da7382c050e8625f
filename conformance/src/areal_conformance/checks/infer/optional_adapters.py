"""Adapters over fixed base weights: each request is computed with the one it names, or with none.

Knows: PEFT folders, versions of a name, loading, replacing, unloading.
Does not know: how an engine applies them.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from safetensors.torch import load_file, save_file

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.content import COARSE, in_dtypes
from areal_conformance.oracles.adapters import EVERY_LAYER, write_adapter
from areal_conformance.oracles.infer_judging import expect_policy, gap, raises, well_formed
from areal_conformance.outcome import expect
from areal_core.contract.errors import ArealError, CapabilityError, VersionRegressed
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine
from areal_torch.testing.serving import FolderWeights

ADAPTERS = ("lora.adapters",)
ATTENTION = ("q_proj", "v_proj")
PROMPT = (5, 9, 7, 30)
MANY_UPDATES = 16
"""Of an adapter, one behind another: as many as it takes for one to lie where one before it did."""
AT_ONCE = 3
"""How often two loads are begun together, each way: which ends first is a matter of luck."""


@frozen(kw_only=True)
class _Made:
    """An adapter's folder, and the weights it amounts to."""

    path: Path
    merged: FolderWeights


def _make(
    bench: InferBench, name: str, *, seed: int, rank: int = 4, alpha: float = 16.0, targets: tuple[str, ...] = ATTENTION
) -> _Made:
    path = bench.folder / name
    base = bench.weights()
    merged = write_adapter(path, base.tensors, rank=rank, alpha=alpha, targets=targets, seed=seed)
    return _Made(path=path, merged=FolderWeights(merged, dict(base.tied)))


def _said(made: _Made, **entries: Any) -> _Made:  # Any: json
    """Let the folder's adapter_config.json say something else."""
    file = made.path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))
    return made


def _ask(
    bench: InferBench, adapter: str = "", *, name: str = "r", heat: float = 0.0, count: int = 16
) -> GenerationRequest:
    return attrs.evolve(bench.ask(*PROMPT, name=name, temperature=heat, max_new_tokens=count), adapter=adapter)


def _expect_of(
    bench: InferBench, result: Generation, request: GenerationRequest, made: _Made | None, version: int | None = None
) -> None:
    """Expect an output of an adapter, stamped with its version; without an adapter, of the base weights."""
    told = f"a request with adapter {request.adapter!r}" if request.adapter else "a request without an adapter"
    expect_policy(bench, result, request, weights=None if made is None else made.merged, told=told)
    if version is not None:
        stamped = {span.version for span in result.version_spans}
        expect(stamped == {version}, f"{told} must be stamped with its version {version}, got {stamped}")


@check("infer.adapters.applied", level=Level.SINGLE, law=1, spec="infer#adapters", requires=ADAPTERS)
async def applied(bench: InferBench) -> None:
    """A request that names an adapter is computed with W + (alpha / r) B A in every layer the adapter has."""
    cases: list[dict[str, Any]] = [
        {"rank": 4, "alpha": 16.0, "targets": ATTENTION},
        {"rank": 2, "alpha": 2.5, "targets": EVERY_LAYER},
        {"rank": 8, "alpha": 8.0, "targets": ("down_proj", "o_proj")},
        {"rank": 1, "alpha": 2.0, "targets": ("gate_proj", "up_proj", "k_proj")},
    ]
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine  # Any: an optional protocol
        for number, case in enumerate(cases):
            made = _make(bench, f"case-{number}", seed=number, **case)
            await server.load_adapter(f"a{number}", made.path, 5 + number)
            for heat in (0.0, 1.0):
                request = _ask(bench, f"a{number}", heat=heat)
                _expect_of(bench, await engine.generate(request), request, made, 5 + number)


@check("infer.adapters.bfloat16", level=Level.SINGLE, law=1, spec="infer#adapters", requires=ADAPTERS)
async def bfloat16(bench: InferBench) -> None:
    """Beside a policy in bfloat16 an adapter serves at its value, whether it was saved in that or in float32."""
    if "bfloat16" not in bench.target.adapter.dtypes:
        bench.notes.append("the adapter names no second dtype that the engine serves")
        return
    policy = in_dtypes(in_dtypes(bench.weights(), "bfloat16"), "float32").tensors
    async with bench.engine(*ADAPTERS, fresh=True, dtype="bfloat16") as engine:
        server: Any = engine
        for version, dtype in enumerate(("float32", "bfloat16"), start=1):
            path = bench.folder / dtype
            merged = write_adapter(path, policy, rank=4, alpha=8.0, targets=ATTENTION, seed=version)
            file = path / "adapter_model.safetensors"
            save_file({name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(file).items()}, file)
            await server.load_adapter("a", path, version)
            request = _ask(bench, "a", heat=1.0, count=32)
            result = await engine.generate(request)
            well_formed(result, request)
            truths = (bench.oracle().logprobs(PROMPT, result.output_ids, weights=each) for each in (merged, policy))
            far, without = (gap(result, truth) for truth in truths)
            told = f"an adapter in {dtype} beside a policy in bfloat16: log-probs are off by {far:.3f}"
            expect(far <= COARSE and far < without / 2, f"{told}, and by {without:.3f} from those without it")


SCALED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rank-stabilised": ({"alpha": 8.0}, {"lora_alpha": 4.0, "use_rslora": True}),
    "with an alpha of their own": ({"alpha": 3.0}, {"lora_alpha": 16.0, "alpha_pattern": {"v_proj": 3.0}}),
    "with a rank of their own": ({"alpha": 16.0}, {"r": 8, "rank_pattern": {"v_proj": 4}}),
}
"""Layers by what is special about their scale -> what amounts to it, and how adapter_config.json says it, at rank 4."""


@check("infer.adapters.scaled", level=Level.SINGLE, law=8, spec="infer#adapters", requires=ADAPTERS)
async def scaled(bench: InferBench) -> None:
    """A scale that adapter_config.json says in another way than alpha / r is the one computed with, or is refused."""
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        for version, (told, (amounts, says)) in enumerate(SCALED.items(), start=1):
            made = _said(_make(bench, f"v{version}", seed=version, targets=("v_proj",), **amounts), **says)
            try:
                await server.load_adapter("a", made.path, version)
            except ArealError as error:
                bench.notes.append(f"an adapter of layers {told} is refused: {error}")
                continue
            _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), made, version)


@check("infer.adapters.base", level=Level.SINGLE, law=1, spec="infer#adapters", requires=ADAPTERS)
async def base(bench: InferBench) -> None:
    """Requests without an adapter are the base model's, before, while and after adapters are loaded and used."""
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        version = await bench.serving(engine)
        _expect_of(bench, await engine.generate(_ask(bench)), _ask(bench), None, version)
        made = _make(bench, "a", seed=1)
        await server.load_adapter("a", made.path, 7)
        _expect_of(bench, await engine.generate(_ask(bench)), _ask(bench), None, version)
        _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), made, 7)
        _expect_of(bench, await engine.generate(_ask(bench)), _ask(bench), None, version)
        expect(await bench.serving(engine) == version, "loading an adapter must not change the engine's own version")
        await server.unload_adapter("a")
        _expect_of(bench, await engine.generate(_ask(bench)), _ask(bench), None, version)


@check("infer.adapters.apart", level=Level.SINGLE, law=1, spec="infer#adapters", requires=ADAPTERS)
async def apart(bench: InferBench) -> None:
    """Requests with four adapters, two of one version, and with none run at once, on one prompt: each to its own."""
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        made: dict[str, _Made | None] = {"": None}
        versions = {"": await bench.serving(engine), "a": 3, "b": 9, "c": 4, "d": 3}
        for seed, name in enumerate("abcd"):
            found = made[name] = _make(bench, name, seed=seed)
            await server.load_adapter(name, found.path, versions[name])
        names = ["a", "b", "", "b", "a", "", "", "a", "b", "c", "d", "", "d"]
        requests = [_ask(bench, name, name=f"r{n}", heat=n % 2, count=10 + n) for n, name in enumerate(names)]
        results = await bench.together(engine, requests)
    for name, request, result in zip(names, requests, results, strict=True):
        _expect_of(bench, result, request, made[name], versions[name])


@check("infer.adapters.after_update", level=Level.SINGLE, law=1, spec="infer#adapters", requires=ADAPTERS, since=(1, 3))
async def after_update(bench: InferBench) -> None:
    """After an update with whole weights W is what was committed; B A and the adapter's version stay as they are."""
    made, old = _make(bench, "a", seed=1), bench.weights()
    newer = FolderWeights({name: tensor * 1.25 for name, tensor in old.tensors.items()}, dict(old.tied))
    merged = write_adapter(bench.folder / "over", newer.tensors, rank=4, alpha=16.0, targets=ATTENTION, seed=1)
    over = _Made(path=made.path, merged=FolderWeights(merged, dict(old.tied)))
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        await server.load_adapter("a", made.path, 3)
        _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), made, 3)
        await bench.update(engine, newer)
        for heat in (0.0, 1.0):
            request = _ask(bench, "a", heat=heat)
            _expect_of(bench, await engine.generate(request), request, over, 3)


@check("infer.adapters.replaced", level=Level.SINGLE, law=7, spec="infer#adapters", requires=ADAPTERS)
async def replaced(bench: InferBench) -> None:
    """A newer version of a name serves what comes later, nothing of the older one is left; an older one is refused.

    Of two that are loaded at once the newer one serves, whichever is asked for first.
    """
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        versions = [_make(bench, f"v{number}", seed=number) for number in range(3)]
        for number, made in enumerate(versions, start=1):
            await server.load_adapter("a", made.path, number)
            for _ in range(2):
                _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), made, number)
        for stale in (3, 1):
            load = partial(server.load_adapter, "a", versions[0].path, stale)
            await raises(VersionRegressed, load, f"version {stale} of an adapter, loaded over version 3,")
        _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), versions[2], 3)
        for number in range(4, 4 + MANY_UPDATES):  # what is kept for an adapter must not be taken for a later one's
            made = versions[number % 3]
            if number % 2:
                await server.unload_adapter("a")
            await server.load_adapter("a", made.path, number)
            _expect_of(bench, await engine.generate(_ask(bench, "a", count=2)), _ask(bench, "a", count=2), made, number)
        await server.unload_adapter("a")
        await server.load_adapter("a", versions[0].path, 1)
        _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), versions[0], 1)
        for order in AT_ONCE * ((2, 3), (3, 2)):
            await server.unload_adapter("a")
            loads = [bench.call(server.load_adapter("a", versions[number - 1].path, number)) for number in order]
            ended = dict(zip(order, await bench.ended(loads, "loads of two versions at once"), strict=True))
            expect(ended[3] is None, f"loaded in the order {order} at once, version 3 ended with {ended[3]!r}")
            expect(
                ended[2] is None or isinstance(ended[2], VersionRegressed),
                f"loaded in the order {order} at once, version 2 ended with {ended[2]!r}",
            )
            _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), versions[2], 3)


@check("infer.adapters.unloaded", level=Level.SINGLE, law=8, spec="infer#adapters", requires=ADAPTERS)
async def unloaded(bench: InferBench) -> None:
    """A name that was never loaded, or was unloaded, raises CapabilityError; unloading is idempotent."""
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        await _expect_unknown(engine, _ask(bench, "never"))
        kept, gone = _make(bench, "kept", seed=1), _make(bench, "gone", seed=2)
        await server.load_adapter("kept", kept.path, 2)
        await server.load_adapter("gone", gone.path, 4)
        await engine.generate(_ask(bench, "gone"))
        for _ in range(3):
            await server.unload_adapter("gone")
            await _expect_unknown(engine, _ask(bench, "gone"))
        await server.unload_adapter("never")
        _expect_of(bench, await engine.generate(_ask(bench, "kept")), _ask(bench, "kept"), kept, 2)


async def _expect_unknown(engine: InferenceEngine, request: GenerationRequest) -> None:
    told = f"a request for adapter {request.adapter!r}, which is not loaded,"
    error = await raises(CapabilityError, partial(engine.generate, request), told)
    expect(request.adapter in str(error), f"the error does not name adapter {request.adapter!r}: {error}")


@check("infer.adapters.unfit", level=Level.SINGLE, law=7, spec="infer#adapters", requires=ADAPTERS)
async def unfit(bench: InferBench) -> None:
    """A folder that is no adapter of this model is refused with a typed error, and leaves what is loaded as it is."""
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        made = _make(bench, "fits", seed=1)
        await server.load_adapter("a", made.path, 1)
        for told, path in _unfit_folders(bench).items():
            await raises(ArealError, partial(server.load_adapter, "a", path, 2), f"load_adapter of {told}")
            _expect_of(bench, await engine.generate(_ask(bench, "a")), _ask(bench, "a"), made, 1)
        _expect_of(bench, await engine.generate(_ask(bench)), _ask(bench), None)


def _unfit_folders(bench: InferBench) -> dict[str, Path]:
    """Return folders that must be refused, by what is wrong with them."""
    wrong = {
        "a folder that is not there": bench.folder / "nowhere",
        "an adapter without its weights": _make(bench, "bare", seed=2).path,
        "an adapter of a layer the model lacks": _make(bench, "foreign", seed=2).path,
        "an adapter of another width": _make(bench, "wide", seed=2).path,
        "an A without its B": _make(bench, "half", seed=2).path,
        "an adapter with a tensor that is neither A nor B": _make(bench, "more", seed=2).path,
        "an adapter of another rank than it says": _said(_make(bench, "rank", seed=2), r=8).path,
        "an adapter of another kind": _said(_make(bench, "kind", seed=2), peft_type="LOHA").path,
        "an adapter with biases of its own": _said(_make(bench, "biases", seed=2), bias="all").path,
        "an adapter that sets the length of a weight, too": _said(_make(bench, "dora", seed=2), use_dora=True).path,
        "an adapter over what it left of the weights": _said(
            _make(bench, "pissa", seed=2), init_lora_weights="pissa"
        ).path,
        "an adapter over what a quick way left of them": _said(
            _make(bench, "niter", seed=2), init_lora_weights="pissa_niter_4"
        ).path,
    }
    file = "adapter_model.safetensors"
    (bench.folder / "bare" / file).unlink()
    tensors = load_file(bench.folder / "foreign" / file)
    foreign = {name.replace("layers.1", "layers.7"): tensor for name, tensor in tensors.items()}
    save_file(foreign, bench.folder / "foreign" / file)
    wide = {name: tensor.repeat(1, 2) if "lora_A" in name else tensor for name, tensor in tensors.items()}
    save_file(wide, bench.folder / "wide" / file)
    more = {
        name.replace("B.weight", "B.bias"): tensor[:, 0].clone() for name, tensor in tensors.items() if "_B" in name
    }
    save_file({**tensors, **more}, bench.folder / "more" / file)
    half = {name: tensor for name, tensor in tensors.items() if "layers.1.self_attn.v_proj.lora_B" not in name}
    save_file(half, bench.folder / "half" / file)
    return wrong


@check("infer.adapters.in_flight", level=Level.SINGLE, law=1, spec="infer#adapters", requires=ADAPTERS)
async def in_flight(bench: InferBench) -> None:
    """A request that runs while its adapter is replaced or unloaded keeps true stamps, or fails with a typed error."""
    async with bench.engine(*ADAPTERS, fresh=True) as engine:
        server: Any = engine
        made = {version: _make(bench, f"v{version}", seed=version) for version in (1, 2)}
        request = _ask(bench, "a", count=100)
        for unloads in (False, True):
            await server.load_adapter("a", made[1].path, 1)
            calls = [bench.call(engine.generate(request))]
            await bench.until_generated(engine, 3)
            await server.load_adapter("a", made[2].path, 2)
            calls.append(bench.call(engine.generate(request)))
            if unloads:
                await bench.until_generated(engine, 3)
                await server.unload_adapter("a")
            told = f"requests whose adapter was replaced{' and unloaded' if unloads else ''}"
            for ended in await bench.ended(calls, f"{told} to end"):
                if isinstance(ended, BaseException):
                    expect(isinstance(ended, ArealError), f"raised {type(ended).__name__}: {ended}")
                    continue
                well_formed(ended, request)
                spans = ended.version_spans
                stamped = {span.version for span in spans}
                expect(stamped <= {*made}, f"stamps must be of the adapter's versions, got {spans}")
                if len(spans) == 1:
                    truth = made[spans[0].version].merged
                    expect_policy(bench, ended, request, weights=truth, told=f"{told}: one stamped {spans[0].version}")
            await server.unload_adapter("a")
        request = _ask(bench)
        _expect_of(bench, await engine.generate(request), request, None)
