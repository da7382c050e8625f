"""How a stored record becomes a row: columns renamed, the prompt written, the answer cut out.

Knows: names, a `str.format` template and a marker.
Does not know: where records are stored (`jsonl`, `hub`).
"""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.forms import as_messages, checked_messages

FORMS = {"prompt", "messages", "text", "input_ids", "chosen"}
"""A row has one of these, whoever learns from it (`areal_tasks.datasets.forms`)."""
_TALK = ("completion", "chosen", "rejected")


@frozen(kw_only=True)
class ShapeConfig:
    """Options of every data set that is read from somewhere.

    Example, GSM8K: ShapeConfig(prompt="{question}", prompt_suffix="\\nEnd with the answer.", answer_after="####")
    """

    columns: Mapping[str, str] = Factory(dict)
    """Row name -> stored name. Columns not named here keep their names."""
    prompt: str = ""
    """A `str.format` template over the row's columns, written to `prompt`. Empty: the rows have a form already."""
    prompt_suffix: str = ""
    """Text added to every `prompt`, as it is; to the last message of one that is a conversation."""
    answer_after: str = ""
    """Keep of `answer` only what follows the last of this marker, without spaces around it."""
    limit: int = field(default=0, validator=validators.ge(0))
    """Take the first so many rows; 0 takes all."""


def check_columns(shape: ShapeConfig, names: Collection[str], where: str) -> None:
    """Check that a record with these columns can be shaped; `where` names the file and line, or the data set.

    Raises:
        DatasetError: a column the shape reads is not there.
    """
    for wanted in shape.columns.values():
        if wanted not in names:
            raise _missing(wanted, names, where)
    known = {*names, *shape.columns}
    for wanted in _template_names(shape):
        if wanted not in known:
            raise _missing(wanted, known, where)
    if not shape.prompt and not known & FORMS:
        raise _missing("prompt", known, where)
    if shape.answer_after and "answer" not in known:
        raise _missing("answer", known, where)


def shaped(shape: ShapeConfig, record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the row of one record. Any: the data set decides what it holds.

    Raises:
        DatasetError: a column is missing, a prompt or an answer is neither text nor conversation, the template does not
            fit the row, or the answer lacks the marker.
    """
    check_columns(shape, record.keys(), where)
    row = {**record, **{name: record[stored] for name, stored in shape.columns.items()}}
    if shape.prompt:
        row["prompt"] = _filled(shape.prompt, row, where)
    if "prompt" in row:
        row["prompt"] = _prompt(row["prompt"], shape.prompt_suffix, where)
    elif "messages" in row:
        row["messages"] = checked_messages(row["messages"], "messages", where)
    for column in _TALK:
        if column in row and not isinstance(row[column], str):
            row[column] = as_messages(row[column], "assistant", column, where)
    if shape.answer_after:
        _, marker, answer = str(row["answer"]).rpartition(shape.answer_after)
        if not marker:
            raise DatasetError(
                f"{where}: the answer has no {shape.answer_after!r}",
                why="answer_after keeps only what follows that marker",
                fix="unset answer_after, or correct the row",
            )
        row["answer"] = answer.strip()
    return row


def _filled(template: str, row: Mapping[str, Any], where: str) -> str:  # Any: as in `shaped`
    try:
        return template.format(**row)
    except (AttributeError, LookupError, TypeError, ValueError, MemoryError) as exc:
        raise DatasetError(
            f"{where}: the prompt template {template!r} does not fit the row",
            why=f"{type(exc).__name__}: {exc}",
            fix="name columns alone, such as {question}; double a literal brace: {{ and }}",
        ) from exc


def _prompt(value: object, suffix: str, where: str) -> object:
    """Return a prompt with what is added to it."""
    if isinstance(value, str):
        return value + suffix
    if not isinstance(value, list | tuple):
        raise DatasetError(
            f"{where}: column 'prompt' is a {type(value).__name__}", why="it must be text, or a list of messages"
        )
    *messages, last = checked_messages(value, "prompt", where)
    if suffix and not isinstance(last.get("content"), str):
        raise DatasetError(
            f"{where}: prompt_suffix cannot be added to the last message of 'prompt'",
            why=f"its content is of type {type(last.get('content')).__name__}",
            fix="put the text into the messages, and unset prompt_suffix",
        )
    return [*messages, {**last, "content": last["content"] + suffix} if suffix else last]


def _template_names(shape: ShapeConfig) -> list[str]:
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(shape.prompt) if name is not None]
    except ValueError as exc:
        raise DatasetError(
            f"the prompt template {shape.prompt!r} cannot be read",
            why=str(exc),
            fix="double a literal brace: {{ and }}",
        ) from exc
    return [name.partition(".")[0].partition("[")[0] for name in fields]


def _missing(name: str, names: Collection[str], where: str) -> DatasetError:
    return DatasetError(
        f"{where}: column {name!r} is missing" if name else f"{where}: the prompt template has a nameless field",
        why=f"there are {', '.join(sorted(names)) or 'no columns'}",
        fix="map it with `columns: {row name: stored name}`, or correct the data",
    )
