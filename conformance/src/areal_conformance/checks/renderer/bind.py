"""A renderer vouches for the tokenizers it binds: it is right on them, or it refuses them and shows why.

Knows: templates that look alike and are not.
Does not know: which of them a renderer takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from areal_agentic.renderer import Renderer
from areal_conformance.benches.conversations import Json, Talk
from areal_conformance.benches.renderer import Bound, RendererBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_conformance.probes.relatives import relatives
from areal_conformance.probes.tokenizers import CHATML, STRANGE, tiny_tokenizer, with_template
from areal_core.contract.errors import DatasetError

_REFUSE = "renderer#refuse"


def _bind(bench: RendererBench, what: str, tokenizer: Any) -> Bound | DatasetError:
    """Return the renderer on a tokenizer, or its refusal. Any: transformers' own."""
    try:
        return bench.bind(what, tokenizer)
    except DatasetError as error:
        return error
    except Exception as error:
        told = f"bind on a tokenizer with {what}: DatasetError was due, not {type(error).__name__}: {error}"
        raise Violation(told) from error


@check("renderer.bind.proven", level=Level.SINGLE, law=8, spec=_REFUSE, deadline_s=120.0)
def proven(bench: RendererBench) -> None:
    """A tokenizer whose template is nearly the family's is refused, or its conversations are written as it has them."""
    if not bench.templated:
        bench.notes.append("writes conversations in a form of its own: there is no template to compare it with")
        return
    num_refused = 0
    for what, change in STRANGE.items():
        made = _bind(bench, what, with_template(change(CHATML)))
        if isinstance(made, DatasetError):
            num_refused += 1
            continue
        for talk in [*bench.talks(41, 16), *bench.talks(42, 16, tools=True)]:
            bench.same(made, talk)
    bench.notes.append(f"refuses {num_refused} of {len(STRANGE)} tokenizers that are nearly of the family")


@check("renderer.bind.shows", level=Level.SINGLE, law=8, spec=_REFUSE, deadline_s=120.0)
def shows(bench: RendererBench) -> None:
    """A refusal says what differs, or what is missing: `why` is not empty, and a shown difference is a real one."""
    strangers = {what: with_template(change(CHATML)) for what, change in STRANGE.items()}
    strangers["no template"] = tiny_tokenizer("bare")
    strangers["a template that refuses everything"] = with_template("{{ raise_exception('never') }}")
    for what, tokenizer in strangers.items():
        made = _bind(bench, what, tokenizer)
        if isinstance(made, DatasetError):
            expect(made.what and made.why, f"a tokenizer with {what} is refused, and nothing says why: {made}")


@check("renderer.bind.bare", level=Level.SINGLE, law=8, spec=_REFUSE)
def bare(bench: RendererBench) -> None:
    """A tokenizer without a chat template is refused by name, or conversations of text are written without one."""
    made = _bind(bench, "no template", tiny_tokenizer("bare"))
    if isinstance(made, DatasetError):
        return
    for talk in bench.talks(43):
        bench.same(made, talk)
    for turn in made.turns(bench.talks(44)):
        bridge = made.bridged(turn)
        whole = made.rendered(turn.whole, turn.asked.tools)
        joined = [*turn.prompt_ids, *turn.output_ids, *(bridge or [])]
        expect(joined == whole, f"prompt, output and bridge are {made.decoded(joined)!r}: another conversation")


@check("renderer.bind.apart", level=Level.SINGLE, law=1, spec="renderer#bind")
def apart(bench: RendererBench) -> None:
    """One renderer bound to two tokenizers is two: neither changes what the other writes."""
    for bound in bench.bounds:
        renderer = bench.fresh()
        one = Bound(kind=bound.kind, tokenizer=bound.tokenizer, renderer=renderer.bind(bound.tokenizer))
        for other in bench.bounds:
            renderer.bind(other.tokenizer)
        shifted = with_template(bound.tokenizer.chat_template or "")
        shifted.add_special_tokens({"additional_special_tokens": ["ab ba"]})
        with contextlib.suppress(DatasetError):
            renderer.bind(shifted)
        for talk in bench.talks(45):
            if not bench.same(one, talk):
                continue
            due, seen = bound.rendered(talk.messages), one.rendered(talk.messages)
            expect(due == seen, f"{bound.kind}: what was bound first writes otherwise since another was bound")


@check("renderer.bind.alike", level=Level.SINGLE, law=1, spec="renderer#bind", deadline_s=120.0)
def alike(bench: RendererBench) -> None:
    """One renderer bound to tokenizers of one class and size, other in template, words or ends, keeps them apart."""
    bound = bench.bounds[0]
    known = {"itself": bound.tokenizer, **dict(relatives(bound.tokenizer))}
    alone = {what: _bind(bench, f"{bound.kind}, {what}", one) for what, one in known.items()}
    renderer = bench.fresh()
    together = {what: _bound_by(renderer, alone[what], one) for what, one in known.items()}
    for talk in bench.talks(46, 3):
        for what in known:
            _same_as_alone(alone[what], together[what], talk, f"{bound.kind}, {what}")


def _bound_by(renderer: Renderer, alone: Bound | DatasetError, tokenizer: Any) -> Bound | None:
    try:
        made = renderer.bind(tokenizer)
    except DatasetError as error:
        if isinstance(alone, DatasetError):
            return None
        raise Violation(f"{alone.kind}: is bound alone, and refused behind others: {error}") from error
    return Bound(kind="", tokenizer=tokenizer, renderer=made)


def _same_as_alone(alone: Bound | DatasetError, seen: Bound | None, talk: Talk, where: str) -> None:
    """Expect a renderer that was bound to others too to be the one that was bound to this tokenizer alone."""
    if isinstance(alone, DatasetError) or seen is None:
        expect(isinstance(alone, DatasetError), f"{where}: is bound alone, and refused behind others")
        expect(seen is None, f"{where}: is refused alone, and bound behind others")
        return
    output, end = alone.encoded("stone ab"), alone.tokenizer.eos_token_id
    for history in talk.messages, [{"role": "user", "content": "ab"}]:
        due, given = alone.rendered(history), seen.rendered(history)
        expect(given == due, f"{where}: bound behind others it writes {list(history)} otherwise")
        for said in (output, output if end is None else [*output, end]):
            due, given = (_gone_on(one, history, said) for one in (alone, seen))
            expect(given == due, f"{where}: bound behind others the bridge is {given}, not {due}")
            read = [one.renderer.parse(said) for one in (alone, seen)]
            expect(read[0] == read[1], f"{where}: bound behind others it reads {read[1]}, not {read[0]}")
    stops = [sorted(one.renderer.stop_token_ids) for one in (alone, seen)]
    expect(stops[0] == stops[1], f"{where}: bound behind others it stops at {stops[1]}, not {stops[0]}")


def _gone_on(bound: Bound, history: Sequence[Json], output: list[int]) -> list[int] | None:
    try:
        return bound.renderer.bridge(list(history), output, [{"role": "user", "content": "ba"}])
    except DatasetError:
        return None
