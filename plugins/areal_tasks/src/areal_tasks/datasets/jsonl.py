"""A data set in a local file, one JSON object per line.

Knows: the file. It is read and checked whole at the start, so that a bad row stops a run before a model loads.
Does not know: what the columns mean (`areal_tasks.datasets.shape`).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from attrs import frozen

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.rows import Row
from areal_tasks.datasets.shape import ShapeConfig, shaped


@frozen(kw_only=True)
class JsonlConfig(ShapeConfig):
    """Options of `jsonl`.

    Example: JsonlConfig(path="train.jsonl", columns={"prompt": "question"})
    """

    path: str


def jsonl(config: JsonlConfig) -> list[Row]:
    """Return the rows of a JSON-lines file; blank lines are skipped.

    Raises:
        DatasetError: the file is missing or empty, or a line (named `file:line`) is no JSON object
            or lacks a column.
    """
    path = Path(config.path).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            chosen = itertools.islice(lines, config.limit or None)
            rows = [_row(config, f"{path}:{number}", line) for number, line in chosen]
    except (OSError, UnicodeDecodeError) as exc:
        raise DatasetError(f"cannot read the data set {path}", why=str(exc), fix="correct `data.options.path`") from exc
    if not rows:
        raise DatasetError(f"the data set {path} has no rows", why="every line is blank")
    return rows


def _row(config: JsonlConfig, where: str, line: str) -> Row:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as exc:
        raise DatasetError(
            f"{where}: the line is not JSON", why=str(exc), fix="write one JSON object per line"
        ) from exc
    if not isinstance(record, dict):
        raise DatasetError(f"{where}: the line is a {type(record).__name__}", why="it must be a JSON object")
    return shaped(config, record, where)
