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
from areal_conformance.check import Level, check
from areal_conformance.checks.infer.optional_experts import KIND
from areal_conformance.outcome import NotRefused
from areal_core.contract.errors import ArealError
from areal_core.contract.inference import IMAGES, Grammar, PauseMode, Structure
from areal_core.contract.train import ROUTED_EXPERTS


async def _sampling(bench: InferBench, claim: str, **asked: Any) -> None:
    """Ask for a sampling parameter that is not claimed, alone and beside a request that does not ask for it."""
    async with bench.engine() as engine:
        plain = bench.call(engine.generate(bench.ask(5, 9, name="plain", max_new_tokens=30)))
        request = bench.ask(5, 9, 7, temperature=1.0, max_new_tokens=4)
        await bench.arefuses(
            claim, lambda: engine.generate(attrs.evolve(request, sampling=attrs.evolve(request.sampling, **asked)))
        )
        await bench.results([plain])
        await engine.generate(request)


@check("infer.refuse.top_p", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.top_p",))
async def top_p(bench: InferBench) -> None:
    """A top_p below 1 is refused where it is not claimed."""
    await _sampling(bench, "sampling.top_p", top_p=0.5)


@check("infer.refuse.top_k", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.top_k",))
async def top_k(bench: InferBench) -> None:
    """A top_k above 0 is refused where it is not claimed."""
    await _sampling(bench, "sampling.top_k", top_k=3)


@check("infer.refuse.min_tokens", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.min_tokens",))
async def min_tokens(bench: InferBench) -> None:
    """A minimum length is refused where it is not claimed."""
    await _sampling(bench, "sampling.min_tokens", min_new_tokens=2)


@check("infer.refuse.stop_strings", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.stop_strings",))
async def stop_strings(bench: InferBench) -> None:
    """A stop string is refused where it is not claimed."""
    await _sampling(bench, "sampling.stop_strings", stop=("ab",))


@check("infer.refuse.stop_tokens", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.stop_tokens",))
async def stop_tokens(bench: InferBench) -> None:
    """Stop tokens are refused where they are not claimed."""
    await _sampling(bench, "sampling.stop_tokens", stop_token_ids=(40,))


@check("infer.refuse.seed", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.seed",))
async def seed(bench: InferBench) -> None:
    """A seed is refused where it is not claimed."""
    await _sampling(bench, "sampling.seed", seed=3)


@check("infer.refuse.ignore_eos", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.ignore_eos",))
async def ignore_eos(bench: InferBench) -> None:
    """Going on past the end token is refused where it is not claimed."""
    await _sampling(bench, "sampling.ignore_eos", ignore_eos=True)


@check("infer.refuse.min_p", level=Level.SINGLE, law=8, spec="infer#sampling", unless=("sampling.min_p",), since=(1, 2))
async def min_p(bench: InferBench) -> None:
    """A min_p above 0 is refused where it is not claimed."""
    await _sampling(bench, "sampling.min_p", min_p=0.2)


@check(
    "infer.refuse.penalties",
    level=Level.SINGLE,
    law=8,
    spec="infer#sampling",
    unless=("sampling.penalties",),
    since=(1, 2),
)
async def penalties(bench: InferBench) -> None:
    """Frequency and presence penalties, negative ones too, are refused where they are not claimed."""
    for asked in ({"frequency_penalty": 0.5}, {"presence_penalty": -0.5}):
        await _sampling(bench, "sampling.penalties", **asked)


@check(
    "infer.refuse.repetition_penalty",
    level=Level.SINGLE,
    law=8,
    spec="infer#sampling",
    unless=("sampling.repetition_penalty",),
    since=(1, 2),
)
async def repetition_penalty(bench: InferBench) -> None:
    """A repetition penalty, also one below 1, is refused where it is not claimed."""
    for asked in (1.2, 0.8):
        await _sampling(bench, "sampling.repetition_penalty", repetition_penalty=asked)


@check(
    "infer.refuse.structured",
    level=Level.SINGLE,
    law=8,
    spec="infer#structure",
    unless=("sampling.structured",),
    since=(1, 2),
)
async def structured(bench: InferBench) -> None:
    """A structure is refused where it is not claimed: text that only happens to fit is worth nothing."""
    async with bench.engine() as engine:
        request = bench.ask(5, 9, 7, max_new_tokens=4)
        for grammar, text in ((Grammar.REGEX, "[a-z]{2}"), (Grammar.JSON_SCHEMA, '{"enum": ["ab"]}')):
            asked = attrs.evolve(request, structure=Structure(grammar=grammar, text=text))
            await bench.arefuses("sampling.structured", functools.partial(engine.generate, asked))
        await engine.generate(request)


async def _method(bench: InferBench, claim: str, name: str, *arguments: Any) -> None:
    """Call a method of an ability that is not claimed; not having it is the best refusal."""
    async with bench.engine(fresh=True) as engine:
        method: Any = getattr(engine, name, None)
        if method is not None:
            await bench.arefuses(claim, lambda: method(*arguments))
        request = bench.ask(5, 9, 7, max_new_tokens=2)
        await engine.generate(request)


@check("infer.refuse.scoring", level=Level.SINGLE, law=8, spec="infer#scoring", unless=("scoring",))
async def scoring(bench: InferBench) -> None:
    """score is refused, or is not there, where it is not claimed."""
    await _method(bench, "scoring", "score", (5, 9, 7), 1.0)


@check("infer.refuse.tools", level=Level.SINGLE, law=8, spec="infer#tool-calls", unless=("tools.parse",), since=(1, 2))
async def tools(bench: InferBench) -> None:
    """parse_tool_calls is refused, or is not there, where it is not claimed."""
    await _method(bench, "tools.parse", "parse_tool_calls", "text", [])


@check("infer.refuse.sleep", level=Level.SINGLE, law=8, spec="infer#sleep", unless=("memory.sleep",))
async def sleep(bench: InferBench) -> None:
    """sleep is refused, or is not there, where it is not claimed."""
    async with bench.engine(fresh=True) as engine:
        method: Any = getattr(engine, "sleep", None)
        if method is None:
            return
        mode = PauseMode.KEEP if bench.target.claimed("pause.keep") else PauseMode.ABORT
        await engine.pause(mode)
        try:
            await bench.arefuses("memory.sleep", method)
        finally:
            with contextlib.suppress(ArealError):
                await engine.resume()


@check("infer.refuse.adapters", level=Level.SINGLE, law=8, spec="infer#adapters", unless=("lora.adapters",))
async def adapters(bench: InferBench) -> None:
    """A request that names an adapter is refused where adapters are not claimed, and so is loading one."""
    async with bench.engine(fresh=True) as engine:
        request = attrs.evolve(bench.ask(5, 9, 7), adapter="a")
        await bench.arefuses("lora.adapters", lambda: engine.generate(request))
        method: Any = getattr(engine, "load_adapter", None)
        if method is not None:
            await bench.arefuses("lora.adapters", lambda: method("a", bench.folder, 1))
        await engine.generate(attrs.evolve(request, adapter=""))


@check("infer.refuse.extras", level=Level.SINGLE, law=8, spec="infer#images")
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


@check("infer.refuse.experts", level=Level.SINGLE, law=8, spec="infer#experts", unless=("experts.trace",))
async def experts(bench: InferBench) -> None:
    """Without the claim no trace of experts comes: a column nobody vouches for would be trained on."""
    model = bench.model(kind=KIND) if KIND in bench.target.adapter.models else bench.model()
    async with bench.engine(model=model, fresh=True) as engine:
        result = await engine.generate(bench.ask(5, 9, 7, max_new_tokens=3))
    if ROUTED_EXPERTS in result.token_extras:
        raise NotRefused("experts.trace")


@check("infer.refuse.tensor_parallel", level=Level.SINGLE, law=8, spec="infer#start", unless=("parallel.tensor",))
async def tensor_parallel(bench: InferBench) -> None:
    """A layout that splits one replica is refused at start where it is not claimed."""
    engine = bench.new()
    spec = bench.spec(layout={"d": 1, "t": 2})
    await bench.arefuses("parallel.tensor", lambda: engine.start(spec))
