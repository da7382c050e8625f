"""What an inference engine does not claim it refuses, saying why; what does not ask for it is served.

Knows: how each unclaimed ability is asked for.
Does not know: whether it works; the session asks the ability's own checks where it was not refused.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import attrs

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, Row, check, family
from areal_conformance.checks.infer.optional_experts import KIND
from areal_conformance.outcome import NotRefused
from areal_core.contract.errors import ArealError
from areal_core.contract.inference import IMAGES, Grammar, Structure
from areal_core.contract.train import ROUTED_EXPERTS

_ASKED: dict[str, Row] = {
    "top_p": Row("A top_p below 1 is refused where it is not claimed.", ("top_p", {"top_p": 0.5})),
    "top_k": Row("A top_k above 0 is refused where it is not claimed.", ("top_k", {"top_k": 3})),
    "min_tokens": Row("A minimum length is refused where it is not claimed.", ("min_tokens", {"min_new_tokens": 2})),
    "stop_strings": Row("A stop string is refused where it is not claimed.", ("stop_strings", {"stop": ("ab",)})),
    "stop_tokens": Row(
        "Stop tokens are refused where they are not claimed.", ("stop_tokens", {"stop_token_ids": (40,)})
    ),
    "seed": Row("A seed is refused where it is not claimed.", ("seed", {"seed": 3})),
    "ignore_eos": Row(
        "Going on past the end token is refused where it is not claimed.", ("ignore_eos", {"ignore_eos": True})
    ),
    "min_p": Row("A min_p above 0 is refused where it is not claimed.", ("min_p", {"min_p": 0.2}), since=(1, 2)),
    "penalties": Row(
        "Frequency and presence penalties, negative ones too, are refused where they are not claimed.",
        ("penalties", {"frequency_penalty": 0.5}, {"presence_penalty": -0.5}),
        since=(1, 2),
    ),
    "repetition_penalty": Row(
        "A repetition penalty, also one below 1, is refused where it is not claimed.",
        ("repetition_penalty", {"repetition_penalty": 1.2}, {"repetition_penalty": 0.8}),
        since=(1, 2),
    ),
}
"""Sampling ability -> its name and, each by itself, the sampling parameters that ask for it."""
_METHODS: dict[str, Row] = {
    "scoring": Row(
        "score is refused, or is not there, where it is not claimed.",
        ("scoring", "score", (5, 9, 7), 1.0),
        spec="infer#scoring",
        unless=("scoring",),
    ),
    "tools": Row(
        "parse_tool_calls is refused, or is not there, where it is not claimed.",
        ("tools.parse", "parse_tool_calls", "text", []),
        spec="infer#tool-calls",
        unless=("tools.parse",),
        since=(1, 2),
    ),
}
"""Ability -> its claim, its method, and arguments of that."""
rule = functools.partial(check, level=Level.SINGLE, law=8)


@family("infer.refuse.{field}", _ASKED, spec="infer#sampling", unless=("sampling.{field}",), **rule.keywords)
async def sampling(bench: InferBench, case: tuple[Any, ...]) -> None:
    """A sampling parameter is refused, alone and beside a request that does not ask for it, which is served."""
    field, *cases = case
    for asked in cases:
        async with bench.engine() as engine:
            plain = bench.call(engine.generate(bench.ask(5, 9, name="plain", max_new_tokens=30)))
            request = bench.ask(5, 9, 7, temperature=1.0, max_new_tokens=4)
            unclaimed = attrs.evolve(request, sampling=attrs.evolve(request.sampling, **asked))
            await bench.arefuses(f"sampling.{field}", functools.partial(engine.generate, unclaimed))
            await bench.results([plain])
            await engine.generate(request)


@family("infer.refuse.{ability}", _METHODS, **rule.keywords)
async def method(bench: InferBench, case: tuple[Any, ...]) -> None:
    """A method of an ability that is not claimed is refused; not having it is the best refusal."""
    claim, name, *arguments = case
    async with bench.engine(fresh=True) as engine:
        called: Any = getattr(engine, name, None)
        if called is not None:
            await bench.arefuses(claim, lambda: called(*arguments))
        await engine.generate(bench.ask(5, 9, 7, max_new_tokens=2))


@rule("infer.refuse.structured", spec="infer#structure", unless=("sampling.structured",), since=(1, 2))
async def structured(bench: InferBench) -> None:
    """A structure is refused where it is not claimed: text that only happens to fit is worth nothing."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 7, max_new_tokens=4)
        for grammar, text in ((Grammar.REGEX, "[a-z]{2}"), (Grammar.JSON_SCHEMA, '{"enum": ["ab"]}')):
            asked = attrs.evolve(request, structure=Structure(grammar=grammar, text=text))
            await bench.arefuses("sampling.structured", functools.partial(engine.generate, asked))
        await engine.generate(request)


@rule("infer.refuse.sleep", spec="infer#sleep", unless=("memory.sleep",))
async def sleep(bench: InferBench) -> None:
    """sleep is refused, or is not there, where it is not claimed."""
    async with bench.engine(fresh=True) as engine:
        method: Any = getattr(engine, "sleep", None)
        if method is None:
            return
        await engine.pause(bench.resting)
        try:
            await bench.arefuses("memory.sleep", method)
        finally:
            with contextlib.suppress(ArealError):
                await engine.resume()


@rule("infer.refuse.adapters", spec="infer#adapters", unless=("lora.adapters",))
async def adapters(bench: InferBench) -> None:
    """A request that names an adapter is refused where adapters are not claimed, and so is loading one."""
    async with bench.engine(fresh=True) as engine:
        request = attrs.evolve(bench.ask(5, 9, 7), adapter="a")
        await bench.arefuses("lora.adapters", lambda: engine.generate(request))
        method: Any = getattr(engine, "load_adapter", None)
        if method is not None:
            await bench.arefuses("lora.adapters", lambda: method("a", bench.folder, 1))
        await engine.generate(attrs.evolve(request, adapter=""))


@rule("infer.refuse.extras", spec="infer#images")
async def extras(bench: InferBench) -> None:
    """Extras of a request that no claim stands for are refused, not dropped."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 7, max_new_tokens=2)
        for name in (IMAGES, "no_such_extra"):
            if name == IMAGES and bench.target.claimed("images"):
                continue
            asked = attrs.evolve(request, extras={name: [b"\x89PNG"]})
            await bench.arefuses(f"extras[{name!r}]", functools.partial(engine.generate, asked))
        await engine.generate(request)


@rule("infer.refuse.experts", spec="infer#experts", unless=("experts.trace",))
async def experts(bench: InferBench) -> None:
    """Without the claim no trace of experts comes: a column nobody vouches for would be trained on."""
    model = bench.model(kind=KIND) if KIND in bench.target.adapter.models else bench.model()
    async with bench.engine(model=model, fresh=True) as engine:
        result = await engine.generate(bench.ask(5, 9, 7, max_new_tokens=3))
    if ROUTED_EXPERTS in result.token_extras:
        raise NotRefused("experts.trace")


@rule("infer.refuse.tensor_parallel", spec="infer#start", unless=("parallel.tensor",))
async def tensor_parallel(bench: InferBench) -> None:
    """A layout that splits one replica is refused at start where it is not claimed."""
    engine = bench.new()
    spec = bench.spec(layout={"d": 1, "t": 2})
    await bench.arefuses("parallel.tensor", lambda: engine.start(spec))


@rule("infer.refuse.pipeline_parallel", spec="infer#start", unless=("parallel.pipeline",), since=(1, 5))
async def pipeline_parallel(bench: InferBench) -> None:
    """A layout that puts a replica's layers on several ranks is refused at start where it is not claimed."""
    engine = bench.new()
    spec = bench.spec(layout={"d": 1, "p": 2})
    await bench.arefuses("parallel.pipeline", lambda: engine.start(spec))
