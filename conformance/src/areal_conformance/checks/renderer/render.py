"""Whole conversations are written as the model's own chat template writes them.

Knows: what conversations there are, and what a renderer may refuse.
Does not know: any family of models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from areal_agentic.renderer import BoundRenderer
from areal_conformance.benches.conversations import Json, Talk
from areal_conformance.benches.renderer import Bound, RendererBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_conformance.probes.tokenizers import FORGETFUL, with_template
from areal_core.contract.errors import DatasetError

_RENDER = "renderer#render"


@check("renderer.render.template", level=Level.SINGLE, law=1, spec=_RENDER)
def template(bench: RendererBench) -> None:
    """Conversations of text are written token for token as the model's own template writes them."""
    for bound in bench.bounds:
        expect(isinstance(bound.renderer, BoundRenderer), f"bind returned a {type(bound.renderer).__name__}")
        written = sum(bench.same(bound, talk) for talk in bench.talks(1, 40))
        expect(written or not bound.tokenizer.chat_template, f"{bound.kind}: no conversation was written")


@check("renderer.render.tools", level=Level.SINGLE, law=1, spec=_RENDER)
def tools(bench: RendererBench) -> None:
    """Tools, calls and answers of tools are written as the template writes them, arguments as objects or as text."""
    for bound in bench.bounds:
        for talk in bench.talks(2, tools=True):
            bench.same(bound, talk)
            bench.same(bound, Talk(messages=talk.messages[:1]), tools=talk.tools)
            made = [bound.rendered(messages) for messages in (talk.messages, talk.as_text())]
            objects, texts = (None if ids is None else bound.decoded(ids) for ids in made)
            told = f"{bound.kind}: where no tools are offered, arguments that are objects are written as {objects!r}"
            expect(made[0] == made[1], f"{told}, and the same as JSON text as {texts!r}")


@check("renderer.render.thoughts", level=Level.SINGLE, law=1, spec=_RENDER)
def thoughts(bench: RendererBench) -> None:
    """Thoughts are written where the template writes them, and left out where it leaves them out."""
    for bound in bench.bounds:
        for talk in [*bench.talks(3, thoughts=True, answers=3), *bench.talks(4, thoughts=True, tools=True)]:
            bench.same(bound, talk)


@check("renderer.render.asks", level=Level.SINGLE, law=1, spec=_RENDER)
def asks(bench: RendererBench) -> None:
    """`ask` opens the answer of the assistant, and without it the conversation ends where its last message does."""
    for bound in bench.bounds:
        for talk in bench.talks(5):
            bench.same(bound, talk, ask=False)
            shown = bound.rendered(talk.messages, ask=True)
            silent = bound.rendered(talk.messages, ask=False)
            if shown is None or silent is None:
                continue
            told = f"{bound.kind}: `ask` changes what stands before the answer of {list(talk.messages)}"
            opened = shown != silent or not bound.tokenizer.chat_template
            expect(shown[: len(silent)] == silent and opened, told)
            for _, answer, _ in talk.turns():
                bench.same(bound, Talk(messages=[*talk.messages, answer]), ask=False)


@check("renderer.render.refuses", level=Level.SINGLE, law=8, spec="renderer#refuse")
def refuses(bench: RendererBench) -> None:
    """What has no place in the family is refused with a DatasetError that says why, and never made into something."""
    cases: dict[str, list[Json]] = {
        "a role nobody has": [{"role": "oracle", "content": "ab"}],
        "a content that is a number": [{"role": "user", "content": 3}],
        "a message without a role": [{"content": "ab"}],
        "a picture": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    }
    for bound in bench.bounds:
        for what, messages in cases.items():
            try:
                seen = bound.renderer.render(messages)
            except DatasetError as error:
                expect(error.what and (error.why or error.fix), f"{bound.kind}: {what} is refused without a reason")
            except Exception as error:
                told = f"{bound.kind}: {what}: DatasetError was due, not {type(error).__name__}: {error}"
                raise Violation(told) from error
            else:
                raise Violation(f"{bound.kind}: {what} was written as {bound.decoded(seen)!r}")


_TOOL = {
    "type": "function",
    "function": {"name": "zeta", "description": "To ask.", "parameters": {"type": "object", "properties": {}}},
}


def _calling(content: str, *arguments: int) -> Json:
    functions = [{"name": "zeta", "arguments": {"number": number}} for number in arguments]
    calls = [{"id": f"call_{n}", "type": "function", "function": one} for n, one in enumerate(functions)]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _said(role: str, content: str, **more: str) -> Json:
    return {"role": role, "content": content, **more}


_ANSWERED = _said("tool", "lumen", tool_call_id="call_0")
_PARTS: Mapping[str, tuple[list[Json], tuple[str, ...]]] = {
    "tools": ([_said("user", "stone")], ("zeta", "stone")),
    "a system message": ([_said("system", "orbit"), _said("user", "stone")], ("orbit", "stone")),
    "a system message behind an answer": (
        [_said("user", "stone"), _said("assistant", "ab"), _said("system", "orbit"), _said("user", "quartz")],
        ("stone", "ab", "orbit", "quartz"),
    ),
    "a call": ([_said("user", "stone"), _calling("", 4271), _ANSWERED], ("zeta", "4271", "lumen")),
    "two calls": (
        [_said("user", "stone"), _calling("", 4271, 6083), _ANSWERED, _said("tool", "orbit", tool_call_id="call_1")],
        ("4271", "6083", "lumen", "orbit"),
    ),
    "a content beside a call": ([_said("user", "stone"), _calling("quartz", 4271), _ANSWERED], ("quartz", "4271")),
}
"""What a conversation may have -> one that has it, and words that have to be in what is written."""


@check("renderer.render.nothing_lost", level=Level.SINGLE, law=8, spec="renderer#refuse")
def nothing_lost(bench: RendererBench) -> None:
    """Tools, systems, calls, what stands beside them and tools' answers are written or refused, and none left out."""
    for bound in [*bench.bounds, *_forgetful(bench)]:
        for what, (messages, words) in _PARTS.items():
            seen = bound.rendered(messages, [_TOOL] if "zeta" in words else [])
            if seen is not None:
                text = bound.decoded(seen)
                lost = [word for word in words if word not in text]
                expect(not lost, f"{bound.kind}: of a conversation with {what} {lost} are left out: {text!r}")


def _forgetful(bench: RendererBench) -> Iterator[Bound]:
    """Yield the renderer on tokenizers whose templates leave parts out, where it binds them."""
    for what, written in FORGETFUL.items():
        with contextlib.suppress(DatasetError):
            yield bench.bind(f"a template that writes {what}", with_template(written))
