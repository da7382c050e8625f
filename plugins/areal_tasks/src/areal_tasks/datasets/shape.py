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


@frozen(kw_only=True)
class ShapeConfig:
    """Options of every data set that is read from somewhere.

    Example, GSM8K: ShapeConfig(prompt="{question}", prompt_suffix="\\nEnd with the answer.", answer_after="####")
    """

    columns: Mapping[str, str] = Factory(dict)
    """Row name -> stored name. Columns not named here keep their names."""
    prompt: str = ""
    """A `str.format` template over the row's columns, written to `prompt`. Empty: there is a `prompt` or `messages`."""
    prompt_suffix: str = ""
    """Text added to every `prompt`, as it is."""
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
    if not shape.prompt and not known & {"prompt", "messages"}:
        raise _missing("prompt", known, where)
    if shape.answer_after and "answer" not in known:
        raise _missing("answer", known, where)


def shaped(shape: ShapeConfig, record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the row of one record. Any: the data set decides what it holds.

    Raises:
        DatasetError: a column is missing, the prompt is no text, the messages are no conversation, the template does
            not fit the row, or the answer lacks the marker.
    """
    check_columns(shape, record.keys(), where)
    row = {**record, **{name: record[stored] for name, stored in shape.columns.items()}}
    if shape.prompt:
        row["prompt"] = _filled(shape.prompt, row, where)
    if "prompt" in row:
        if not isinstance(row["prompt"], str):
            raise DatasetError(f"{where}: column 'prompt' is a {type(row['prompt']).__name__}", why="it must be text")
        row["prompt"] += shape.prompt_suffix
    elif "messages" in row:
        _check_messages(row["messages"], where)
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


def _check_messages(value: object, where: str) -> None:
    if isinstance(value, list | tuple) and value:
        roles = [message.get("role") if isinstance(message, Mapping) else None for message in value]
        if all(isinstance(role, str) for role in roles):
            return
    raise DatasetError(
        f"{where}: column 'messages' is no conversation",
        why=f"it is {str(value)[:60]!r}",
        fix='write a list such as [{"role": "user", "content": "2 + 2 ="}]',
    )


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
