"""What a check of a renderer is given: renderers bound to tiny tokenizers, and what the templates themselves write.

The truth is the tokenizer's own chat template, its text encoded. Arguments of calls are objects for it, as the
templates expect; a renderer is given them as objects and as JSON text.

Knows: the tokenizers an adapter names, and how a renderer is compared with their templates.
Does not know: how any model writes conversations.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import field, frozen

from areal_agentic.renderer import Answer, BoundRenderer, Renderer
from areal_conformance.benches.base import Bench
from areal_conformance.benches.conversations import Json, Talk, conversations, with_arguments
from areal_conformance.outcome import Violation, expect
from areal_conformance.probes.tokenizers import TEMPLATES, tiny_tokenizer
from areal_conformance.target import Target
from areal_core.contract.errors import DatasetError

NUM_TALKS = 24
"""Conversations that a rule is tried on, for each tokenizer."""


@frozen(kw_only=True)
class Turn:
    """One answer in a conversation, as the template writes it: `output_ids` behind `prompt_ids`."""

    asked: Talk
    answer: Json
    then: tuple[Json, ...]
    """What followed it."""
    prompt_ids: list[int]
    output_ids: list[int]
    """With the token that ends it."""

    @property
    def whole(self) -> tuple[Json, ...]:
        """Return the conversation with the answer and what followed."""
        return (*self.asked.messages, self.answer, *self.then)


@frozen(kw_only=True)
class Bound:
    """A renderer bound to one tokenizer, beside that tokenizer."""

    kind: str
    tokenizer: Any  # Any: transformers is not typed here
    renderer: BoundRenderer
    _known: dict[str, list[int]] = field(factory=dict, init=False, repr=False)
    """The tokens of texts that the template gave before."""
    _closing: list[list[int] | None] = field(factory=list, init=False, repr=False)
    """What `closing` found, once it was asked for."""

    def truth(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, ask: bool = True) -> list[int] | None:
        """Return the tokens that the model's own template gives; None if it refuses, or there is none."""
        text = self.text(messages, tools, ask=ask)
        if text is not None and text not in self._known:
            self._known[text] = self.encoded(text)
        return None if text is None else [*self._known[text]]

    def text(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, ask: bool = True) -> str | None:
        """Return the text of the model's own template; None if it refuses, or there is none."""
        if not self.tokenizer.chat_template:
            return None
        given = [with_arguments(one, as_text=False) for one in messages]
        options = {"tools": list(tools)} if tools else {}
        try:
            return str(self.tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=ask, **options))
        except Exception:  # whatever a template and jinja2 raise: a conversation it has no place for
            return None

    @property
    def closing(self) -> list[int] | None:
        """Return what closes thoughts that were cut behind a prompt that opened them; None where none does so."""
        if not self._closing:
            self._closing.append(self._found_closing())
        return self._closing[0]

    def _found_closing(self) -> list[int] | None:
        asked, then, body = _user("stone"), _user("ab"), self.encoded("orbit")
        read = self.renderer.parse(body)
        if read.content or read.thoughts.strip() != "orbit":
            return None
        cut, *ended = (
            self.renderer.bridge([asked], [*body, *end], [then], keep_thoughts=True)
            for end in ([], *([stop] for stop in sorted(self.renderer.stop_token_ids)))
        )
        rests = [rest for rest in ended if cut and rest and list(cut)[-len(rest) :] == list(rest)]
        return list(cut)[: -len(rests[0]) - 1] if cut and rests else None

    def encoded(self, text: str) -> list[int]:
        """Return the tokens of a text, none added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones with them."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @property
    def controls(self) -> dict[int, str]:
        """Return the tokens that no text of a message becomes: special ones, and added ones with bars in them."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {number: str(one) for number, one in added if one.special or _barred(str(one))}

    def controlling(self, ids: Sequence[int]) -> list[int]:
        """Return those of these tokens that are control tokens, in their order."""
        controls = self.controls
        return [token for token in ids if token in controls]

    def rendered(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, ask: bool = True) -> list[int] | None:
        """Return the tokens that the renderer gives, None where it has no place for this and says so."""
        try:
            return list(self.renderer.render(list(messages), tools=list(tools), ask=ask))
        except DatasetError as error:
            expect(error.what, f"{self.kind}: a conversation is refused without a word: {list(messages)}")
            return None

    def turns(self, talks: Iterator[Talk], *, ended: bool = True) -> Iterator[Turn]:
        """Yield the answers of conversations as the template writes them, where renderer and template write them.

        Those that no token ends before what follows are left out without `ended`, else they break the contract.
        """
        for talk in talks:
            for asked, answer, then in talk.turns():
                made = self._turn(asked, answer, then, ended=ended)
                if made is not None:
                    yield made

    def unanswered(self, talks: Iterator[Talk]) -> Turn:
        """Return a turn that nobody has answered yet, for outputs of all kinds."""
        asked, answer, then = next(turn for talk in talks for turn in talk.turns())
        return Turn(asked=asked, answer=answer, then=then, prompt_ids=[], output_ids=[])

    def _turn(self, asked: Talk, answer: Json, then: tuple[Json, ...], *, ended: bool) -> Turn | None:
        prompt = self._written(asked.messages, asked.tools, ask=True)
        whole = self._written((*asked.messages, answer), asked.tools, ask=False)
        if prompt is None or whole is None or whole[: len(prompt)] != prompt:
            return None
        behind = whole[len(prompt) :]
        ends = [place for place, token in enumerate(behind) if token in self.renderer.stop_token_ids]
        end = behind[ends[0]] if ends else self._opens_the_next(asked, answer, then)
        if end is None:
            expect(not ended, f"{self.kind}: none of the tokens that end an answer ends {self.decoded(behind)!r}")
            return None
        output = [*(behind[: ends[0]] if ends else behind), end]
        return Turn(asked=asked, answer=answer, then=then, prompt_ids=prompt, output_ids=output)

    def said_in(self, turn: Turn) -> Json:
        """Return content, thoughts and calls of an answer, as far as the template has written them."""
        given = with_arguments(turn.answer, as_text=False)
        calls = [(one["function"]["name"], one["function"]["arguments"]) for one in given.get("tool_calls", ())]
        return {
            "content": given["content"] if not calls or self._depends(turn, content="") else "",
            "thoughts": given.get("reasoning_content", "") if self._depends(turn, reasoning_content=None) else "",
            "calls": calls if self._depends(turn, tool_calls=None) else [],
        }

    def _depends(self, turn: Turn, **other: Any) -> bool:  # Any: JSON
        """Tell whether an answer would be written otherwise if something of it were other; None takes it away."""
        said = {key: value for key, value in {**turn.answer, **other}.items() if value is not None}
        if said == turn.answer:
            return False
        texts = [self._written((*turn.asked.messages, one), turn.asked.tools, ask=False) for one in (said, turn.answer)]
        return texts[0] != texts[1]

    def _opens_the_next(self, asked: Talk, answer: Json, then: tuple[Json, ...]) -> int | None:
        """Return the token that opens the message behind an answer, if it is one that ends answers in some families.

        It is found where nobody thinks, as a message may change which thoughts before it are written.
        """
        silent = [{key: value for key, value in one.items() if key != "reasoning_content"} for one in asked.messages]
        silent.append({key: value for key, value in answer.items() if key != "reasoning_content"})
        alone = self._written(silent, asked.tools, ask=False) or []
        longer = self._written([*silent, *then], asked.tools, ask=False) or []
        following = longer[len(alone) : len(alone) + 1] if longer[: len(alone)] == alone else []
        return next((token for token in following if token in self.renderer.stop_token_ids), None)

    def _written(self, messages: Sequence[Json], tools: Sequence[Json], *, ask: bool) -> list[int] | None:
        """Return the tokens of a conversation: of the template if there is one, else of the renderer."""
        mine = self.rendered(messages, tools, ask=ask)
        if mine is None or not self.tokenizer.chat_template:
            return mine
        return self.truth(messages, tools, ask=ask)

    def bridged(self, turn: Turn, output_ids: Sequence[int] | None = None, **options: Any) -> list[int] | None:
        """Return the renderer's bridge behind an answer, or other tokens for it. Any: arguments of `bridge`."""
        output = turn.output_ids if output_ids is None else list(output_ids)
        made = self.renderer.bridge(
            list(turn.asked.messages), output, list(turn.then), tools=list(turn.asked.tools), **options
        )
        return None if made is None else list(made)

    def goes_on(self, turn: Turn) -> list[int] | None:
        """Return what follows an answer where the whole conversation is written; None if it is written otherwise.

        The answer is what the renderer reads in the output, as the law has it.
        """
        before = [*turn.prompt_ids, *turn.output_ids]
        answer = self.renderer.parse(turn.output_ids, tools=turn.asked.tools).message
        whole = self._written((*turn.asked.messages, answer, *turn.then), turn.asked.tools, ask=True)
        return None if whole is None or whole[: len(before)] != before else whole[len(before) :]


class RendererBench(Bench):
    """One renderer, bound to each of the adapter's tokenizers when that is first asked for."""

    _bound: tuple[Bound, ...] | None = None
    _of: Target | None = None

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Return the renderer on every tokenizer of the adapter; if it names none, on the suite's that it binds."""
        if self._bound is None or self._of is not self.target:
            named = self.target.adapter.tokenizers
            made = [self.bind(kind) for kind in named] if named else [*self._bindable()]
            expect(made, "binds none of the suite's tokenizers; an adapter names one of its own: see `tokenizers`")
            self._bound, self._of = tuple(made), self.target
        return self._bound

    def _bindable(self) -> Iterator[Bound]:
        for kind in TEMPLATES:
            with contextlib.suppress(DatasetError):
                yield self.bind(kind)

    @property
    def templated(self) -> bool:
        """Whether a tokenizer of the adapter has a chat template: the renderer is held to templates."""
        return any(bound.tokenizer.chat_template for bound in self.bounds)

    def fresh(self) -> Renderer:
        """Return another instance, not bound."""
        made: Renderer = self.build()
        return made

    def bind(self, kind: str, tokenizer: Any = None) -> Bound:
        """Bind another instance to a tokenizer of this kind, or the given one. Any: transformers' own."""
        found = tiny_tokenizer(kind) if tokenizer is None else tokenizer
        return Bound(kind=kind, tokenizer=found, renderer=self.fresh().bind(found))

    def ended_otherwise(self) -> Iterator[Bound]:
        """Yield the renderer on tokenizers whose end token is none that their templates write, where it binds them."""
        for bound in self.bounds:
            own = bound.tokenizer
            if not own.chat_template or own.pad_token_id in (None, own.eos_token_id):
                continue
            other = copy.deepcopy(own)
            other.eos_token = other.pad_token
            with contextlib.suppress(DatasetError):
                yield self.bind(f"{bound.kind}, ending texts with {other.eos_token}", other)

    def talks(self, seed: int, count: int = NUM_TALKS, **more: Any) -> Iterator[Talk]:
        """Yield conversations. Any: what `conversations` takes."""
        return conversations(seed, count, **more)

    def same(self, bound: Bound, talk: Talk, *, ask: bool = True, tools: Sequence[Json] | None = None) -> bool:
        """Expect a conversation to be written as the template writes it, whole; False if both have no place for it.

        Where there is no template, nothing is compared. What only the renderer refuses is its limit, and noted; but
        a conversation of system, user and assistant with nothing but text has a place in every family.
        """
        given = talk.tools if tools is None else tools
        due = bound.truth(talk.messages, given, ask=ask)
        for messages in (talk.messages, talk.as_text()):
            seen = bound.rendered(messages, given, ask=ask)
            if seen is None:
                plain = not given and all(set(one) <= {"role", "content"} for one in talk.messages)
                wanted = plain and (due is not None or not bound.tokenizer.chat_template)
                expect(not wanted, f"{bound.kind}: refuses {list(talk.messages)}, which is text alone")
                self.noted(f"{bound.kind}: has no place for some conversations with tools, calls or thoughts")
                return False
            if due is None:
                told = f"{bound.kind}: the model's template refuses {list(messages)}, the renderer writes it"
                expect(not bound.tokenizer.chat_template, told)
                return False
            if seen != due:
                raise Violation(f"{bound.kind}: {difference(bound, due, seen)}; the conversation is {list(messages)}")
        return True

    def noted(self, note: str) -> None:
        """Note something once."""
        if note not in self.notes:
            self.notes.append(note)


def _user(content: str) -> Json:
    return {"role": "user", "content": content}


def _barred(text: str) -> bool:
    return len(text) > 1 and any(bar in text for bar in ("|", "\uff5c"))


def difference(bound: Bound, due: Sequence[int], seen: Sequence[int]) -> str:
    """Return where two renderings part, in words."""
    at = next(
        (i for i, (one, other) in enumerate(zip(due, seen, strict=False)) if one != other), min(len(due), len(seen))
    )
    begin = max(0, at - 6)
    return (
        f"token {at} differs: the template writes ...{bound.decoded(due[begin : at + 12])!r}, "
        f"the renderer ...{bound.decoded(seen[begin : at + 12])!r}"
    )


def spelled(bound: Bound, text: str) -> list[int]:
    """Return tokens of a text that no tokenizer would choose: merged letters one by one, where it has some."""
    ids: list[int] = []
    for token in bound.encoded(text):
        piece = bound.decoded([token])
        apart = (
            [one for letter in piece for one in bound.encoded(letter)] if piece.isascii() and piece.isalpha() else []
        )
        ids += apart if apart and bound.decoded(apart) == piece else [token]
    return ids


def message_of(answer: Answer) -> Json:
    """Return what an answer says, to be compared: content, thoughts, calls with their arguments as objects."""
    said = with_arguments(answer.message, as_text=False)
    calls = [(one["function"]["name"], one["function"]["arguments"]) for one in said.get("tool_calls", ())]
    return {"content": said["content"], "thoughts": said.get("reasoning_content", ""), "calls": calls}
