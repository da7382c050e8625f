"""What a row to learn from may look like, and the token ids it becomes.

    {"prompt": "2 + 2 =", "completion": " 4"}                            supervised; `answer` stands in for `completion`
    {"prompt": [{"role": "user", "content": "2 + 2"}], "completion": [{"role": "assistant", "content": "4"}]}
    {"messages": [{"role": "user", ...}, {"role": "assistant", ...}]}    supervised, every answer or the last
    {"text": "once upon a time"}                                         supervised, all of it
    {"prompt": ..., "chosen": ..., "rejected": ...}                      a preference; `prompt` may be inside both

Texts and messages may be mixed: where one is messages, the others are too. `input_ids` with `loss_mask` are taken as
they are. `tools` and `chat_template_kwargs` go to the chat template.

Knows: columns. Does not know: tokens (`encoding`), or who learns from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.encoding import (
    ChatConfig,
    FormConfig,
    Message,
    Renderer,
    Tokens,
    chat_tokens,
    text_tokens,
)
from areal_tasks.datasets.rows import Row

HH_PROMPT_ENDS = "\n\nAssistant:"
"""Where the prompt ends in pairs of text such as Anthropic's hh-rlhf."""
_DEFAULT = FormConfig()


class Pair(NamedTuple):
    """Two answers to one prompt; the ids of both begin with those of the prompt, which is not learned."""

    chosen: Tokens
    rejected: Tokens


def supervised(row: Row, tokenizer: Any, config: FormConfig = _DEFAULT, where: str = "a row") -> Tokens:
    """Return the tokens of a row to imitate. Any: a Hugging Face tokenizer.

    Args:
        where: names the row in errors, for example `train.jsonl:7`.

    Raises:
        DatasetError: the row has no form that can be imitated, or holds something of the wrong type.
    """
    if "input_ids" in row:
        return _given(row, where)
    if row.get("images"):
        raise DatasetError(
            f"{where}: a row with images cannot be imitated", why="only text is", fix="leave the column 'images' out"
        )
    if "messages" in row:
        messages = checked_messages(row["messages"], "messages", where)
        return chat_tokens(tokenizer, messages, 0, Renderer(tokenizer, config, row, where), config.turns)
    completion = next((name for name in ("completion", "answer") if name in row), None)
    if "prompt" in row and completion is not None:
        return _answered(row, row["prompt"], row[completion], completion, tokenizer, config, where)
    if "text" in row:
        found = text_tokens(tokenizer, "", _text(row["text"], "text", where), config)
        return Tokens(found.ids, [False, *[True] * (len(found.ids) - 1)])  # the first is predicted by nothing
    raise _no_form(row, "prompt and completion (or answer), messages, text, or input_ids and loss_mask", where)


def preference(row: Row, tokenizer: Any, config: FormConfig = _DEFAULT, where: str = "a row") -> Pair:
    """Return the tokens of a better and a worse answer to one prompt. Any: a Hugging Face tokenizer.

    Raises:
        DatasetError: as `supervised`; or where the prompt ends cannot be told.
    """
    if "chosen" not in row or "rejected" not in row:
        raise _no_form(row, "chosen and rejected, and maybe prompt", where)
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if prompt is None:
        prompt, chosen, rejected = _without_prompt(chosen, rejected, config, where)
    answers = {"chosen": chosen, "rejected": rejected}
    made = (_answered(row, prompt, value, name, tokenizer, config, where) for name, value in answers.items())
    return Pair(*made)


def prompt_text(row: Row, tokenizer: Any, config: ChatConfig, where: str = "a row") -> str:
    """Return the text that a run generates from: of `messages` or `prompt`. Any: as in `supervised`.

    Raises:
        DatasetError: there is neither, or it is no text and no conversation.
    """
    if "messages" not in row and "prompt" not in row:
        raise _no_form(row, "messages or prompt", where)
    name = "messages" if "messages" in row else "prompt"
    if isinstance(row[name], str) and name == "prompt" and not (config.chat or config.system):
        return str(row[name])
    return Renderer(tokenizer, config, row, where)(as_messages(row[name], "user", name, where), ask=True)


def as_messages(value: object, role: str, column: str, where: str) -> list[Message]:
    """Return messages as they are, and a text as one message of a role.

    Raises:
        DatasetError: it is neither.
    """
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return checked_messages(value, column, where)


def checked_messages(value: object, column: str, where: str) -> list[Message]:
    """Return a conversation, keys without a value left out: tables fill what a message does not have.

    Raises:
        DatasetError: it is no list of mappings with a role.
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        roles = [message.get("role") if isinstance(message, Mapping) else None for message in value]
        if all(isinstance(role, str) for role in roles):
            return [{key: part for key, part in message.items() if part is not None} for message in value]
    raise DatasetError(
        f"{where}: column {column!r} is no conversation" + ("" if column == "messages" else " and no text"),
        why=f"it is {str(value)[:60]!r}",
        fix='write a list such as [{"role": "user", "content": "2 + 2 ="}]',
    )


def _answered(
    row: Row, prompt: object, answer: object, column: str, tokenizer: Any, config: FormConfig, where: str
) -> Tokens:
    """Return one answer to a prompt: as text if both are, else as a conversation."""
    if isinstance(prompt, str) and isinstance(answer, str) and not (config.chat or config.system):
        return text_tokens(tokenizer, prompt, answer, config)
    asked = as_messages(prompt, "user", "prompt", where)
    told = as_messages(answer, "assistant", column, where)
    if told[0]["role"] != "assistant":
        raise DatasetError(
            f"{where}: column {column!r} begins with a message of {told[0]['role']!r}",
            why="it holds the answer to the prompt",
            fix="begin it with a message of the role 'assistant', and let the prompt end before",
        )
    render = Renderer(tokenizer, config, row, where)
    return chat_tokens(tokenizer, [*asked, *told], len(asked), render, config.turns)


def _without_prompt(chosen: Any, rejected: Any, config: FormConfig, where: str) -> tuple[Any, Any, Any]:
    """Return the prompt that both answers begin with, and the answers. Any: texts or messages."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        marker = config.prompt_ends or HH_PROMPT_ENDS
        shared = len(list(takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))))
        end = chosen[:shared].rfind(marker)
        if end < 0:
            raise DatasetError(
                f"{where}: where the prompt ends cannot be told",
                why=f"there is no column 'prompt', and what 'chosen' and 'rejected' share has no {marker!r}",
                fix="give the prompt in a column of its own, or say where it ends: prompt_ends",
            )
        end += len(marker)
        return chosen[:end], chosen[end:], rejected[end:]
    told = checked_messages(chosen, "chosen", where), checked_messages(rejected, "rejected", where)
    same = len(list(takewhile(lambda both: both[0] == both[1], zip(*told, strict=False))))
    while same and (told[0][same - 1]["role"] == "assistant" or same == min(map(len, told))):
        same -= 1
    if not same:
        raise DatasetError(
            f"{where}: 'chosen' and 'rejected' do not begin with the same prompt",
            why="there is no column 'prompt', and their first messages differ",
            fix="begin both with the messages of the prompt, or give it in a column of its own",
        )
    return told[0][:same], told[0][same:], told[1][same:]


def _given(row: Row, where: str) -> Tokens:
    ids, mask = row["input_ids"], row.get("loss_mask")
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(isinstance(each, int) for each in ids):
        raise DatasetError(f"{where}: column 'input_ids' is no list of token ids", why=f"it is {str(ids)[:60]!r}")
    if not isinstance(mask, Sequence) or len(mask) != len(ids):
        raise DatasetError(
            f"{where}: column 'loss_mask' does not fit 'input_ids'",
            why=f"it is {str(mask)[:60]!r}, for {len(ids)} tokens",
            fix="give a list with 1 for each token that is learned, and 0 for each that is not",
        )
    return Tokens(list(ids), [bool(each) for each in mask])


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise DatasetError(f"{where}: column {column!r} is a {type(value).__name__}", why="it must be text")
    return value


def _no_form(row: Row, wanted: str, where: str) -> DatasetError:
    return DatasetError(
        f"{where}: the row lacks columns",
        why=f"wanted: {wanted}; there are {', '.join(sorted(map(str, row))) or 'none'}",
        fix="map them with `columns: {row name: stored name}`, or correct the data",
    )
