"""Text and conversations as token ids, with a mask of what is to be learned.

Knows: chat templates, where an answer begins and ends in a rendered conversation, and the end token.
Does not know: columns of rows (`forms`).

A prompt's tokens are those that a run generates from: the prompt is tokenized as it would be alone, and no token lies
across the border to the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from attrs import Factory, field, frozen, validators

from areal_core.contract.errors import DatasetError

Message = Mapping[str, Any]  # Any: chat templates read it


class Tokens(NamedTuple):
    """Token ids, and which of them are to be learned: `ids, loss_mask = supervised(row, tokenizer)`."""

    ids: list[int]
    loss_mask: list[bool]


@frozen(kw_only=True)
class ChatConfig:
    """Options of everything that puts a row through the model's chat template."""

    system: str = ""
    """A system message put before the conversation. A row's own system message comes after it."""
    chat: bool = False
    """Put a `prompt` that is text through the chat template, as one message of the user; `system` implies it."""
    template: Mapping[str, Any] = Factory(dict)  # Any: the template's own variables
    """Given to the chat template, for example {"enable_thinking": false}. A row's `chat_template_kwargs` go over it."""
    enable_thinking: bool | None = None
    """Whether the model is to think first, for chat templates with such a switch. None leaves it to the template."""
    add_special_tokens: bool = True
    """Whether a `prompt` that is plain text gets the special tokens the tokenizer puts around a text."""

    @property
    def variables(self) -> dict[str, Any]:  # Any: as above
        """Return what the chat template is given."""
        switch = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return {**switch, **self.template}


@frozen(kw_only=True)
class FormConfig(ChatConfig):
    """How rows become tokens to learn from.

    Example: FormConfig(enable_thinking=False, turns="last")
    """

    turns: str = field(default="all", validator=validators.in_(("all", "last")))
    """Which answers of a conversation are learned."""
    prompt_ends: str = ""
    """For pairs of text without `prompt`: where the prompt ends, at the last of these. Empty: "\\n\\nAssistant:"."""


class Renderer:
    """One row's way through the chat template."""

    def __init__(self, tokenizer: Any, config: ChatConfig, row: Mapping[str, Any], where: str) -> None:
        """Any: a Hugging Face tokenizer; rows hold what they hold.

        Raises:
            DatasetError: the model has no chat template, or its template has no switch for thinking.
        """
        self.where = where
        self._tokenizer, self._config = tokenizer, config
        own = row.get("chat_template_kwargs") or {}
        if not isinstance(own, Mapping):
            raise DatasetError(f"{where}: column 'chat_template_kwargs' is a {type(own).__name__}", why="it holds keys")
        self._variables = {**config.variables, **{str(key): value for key, value in own.items()}}
        if row.get("tools"):
            self._variables["tools"] = row["tools"]
        check_template(tokenizer, config)

    def __call__(self, messages: Sequence[Message], *, ask: bool) -> str:
        """Return the text of a conversation; `ask` ends it where the model is to answer.

        Raises:
            DatasetError: the template refuses the conversation.
        """
        system = [{"role": "system", "content": self._config.system}] if self._config.system else []
        options = {"add_generation_prompt": ask, **self._variables, "tokenize": False}
        try:
            return str(self._tokenizer.apply_chat_template([*system, *messages], **options))
        except Exception as exc:  # whatever a template and jinja2 raise
            raise DatasetError(
                f"{self.where}: the chat template refuses the conversation",
                why=f"{type(exc).__name__}: {str(exc)[:300]}",
                fix="correct the row's roles and contents, or the variables given to the template",
            ) from exc


def check_template(tokenizer: Any, config: ChatConfig) -> None:  # Any: a Hugging Face tokenizer
    """Refuse a model without a chat template, and a switch for thinking that its template does not have.

    Raises:
        DatasetError: names what is missing.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise DatasetError(
            "the model's tokenizer has no chat template",
            why="messages become text by the model's own template",
            fix="give prompts as text, without `chat` and `system`; or take a chat model",
        )
    if config.enable_thinking is not None and "enable_thinking" not in str(template):
        raise DatasetError(
            f"enable_thinking={str(config.enable_thinking).lower()} has no effect",
            why="the model's chat template does not read `enable_thinking`",
            fix="leave it out, or give the template's own variables in `template`",
        )


def text_tokens(tokenizer: Any, prompt: str, completion: str, config: ChatConfig) -> Tokens:
    """Return prompt and completion as they are, an end token after them; the completion is learned. Any: as above."""
    before, answer = _pieces(tokenizer, prompt + completion, [len(prompt)], config.add_special_tokens)
    learned = [*answer, *_end(tokenizer, answer)]
    return Tokens([*before, *learned], [False] * len(before) + [True] * len(learned))


def chat_tokens(tokenizer: Any, messages: Sequence[Message], first: int, render: Renderer, turns: str) -> Tokens:
    """Return a conversation whose answers from message `first` on are learned, all or the last. Any: as above.

    Raises:
        DatasetError: no answer is there to be learned, or the template writes an answer otherwise than it asks for it.
    """
    learned = [n for n, message in enumerate(messages) if n >= first and message["role"] == "assistant"]
    if not learned or learned[-1] != len(messages) - 1:
        raise DatasetError(
            f"{render.where}: the conversation does not end with an answer",
            why=f"its roles are {', '.join(str(message['role']) for message in messages)}",
            fix="end it with a message of the role 'assistant': that is what is learned",
        )
    learned = learned[-1:] if turns == "last" else learned
    whole = render(messages, ask=False)
    cuts = [cut for turn in learned for cut in _borders(messages, turn, whole, render)]
    *pieces, _rest = _pieces(tokenizer, whole, cuts, special=False)
    if not pieces[-1] or pieces[-1][-1] not in tokenizer.added_tokens_decoder:  # no end marker of the template's
        pieces[-1] += _end(tokenizer, pieces[-1])
    mask = [number % 2 == 1 for number, piece in enumerate(pieces) for _ in piece]
    return Tokens([token for piece in pieces for token in piece], mask)


def _borders(messages: Sequence[Message], turn: int, whole: str, render: Renderer) -> tuple[int, int]:
    """Return where an answer begins and ends in the text of the conversation, its end marker inside."""
    asked = render(messages[:turn], ask=True)
    told = whole if turn == len(messages) - 1 else render(messages[: turn + 1], ask=False)
    if not whole.startswith(asked) or not whole.startswith(told):
        raise DatasetError(
            f"{render.where}: the chat template writes answer {turn + 1} of the conversation otherwise than it asks "
            "for it",
            why="templates of thinking models leave the thoughts of earlier turns out, so those answers are never "
            "generated in this place",
            fix="learn the last answer alone: turns: last"
            if turn < len(messages) - 1
            else "give enable_thinking, or another chat template",
        )
    return len(asked), len(asked) + len(told[len(asked) :].rstrip())


def _pieces(tokenizer: Any, text: str, cuts: Sequence[int], special: bool) -> list[list[int]]:
    """Return the tokens of a text cut at places; none lies across a cut, and those before a cut are as if alone."""
    whole = [int(token) for token in tokenizer.encode(text, add_special_tokens=special)]
    ends = []
    for cut in cuts:
        before = tokenizer.encode(text[:cut], add_special_tokens=special)
        if whole[: len(before)] != before:
            break
        ends.append(len(before))
    else:
        return [whole[start:stop] for start, stop in pairwise([0, *ends, len(whole)])]
    found = [text[start:stop] for start, stop in pairwise([0, *cuts, len(text)])]
    return [tokenizer.encode(part, add_special_tokens=special and not n) for n, part in enumerate(found)]


def _end(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Return the end token, nothing if it is there."""
    end = tokenizer.eos_token_id
    if end is None:
        raise DatasetError(
            "the model's tokenizer has no end token",
            why="an answer ends with it, or the model never learns to stop",
            fix="set eos_token in its tokenizer_config.json",
        )
    return [] if ids and ids[-1] == end else [int(end)]
