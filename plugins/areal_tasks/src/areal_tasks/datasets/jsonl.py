"""A data set in a local file, one JSON object per line.

Knows: the file. It is read and checked whole at the start, so that a bad row stops a run before a model loads.
Does not know: what the columns mean (`areal_tasks.datasets.shape`).
"""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

from attrs import field, frozen, validators

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.mixture import prompt_chars
from areal_tasks.datasets.rows import Row
from areal_tasks.datasets.shape import ShapeConfig, shaped

logger = logging.getLogger("areal.data")


@frozen(kw_only=True)
class JsonlConfig(ShapeConfig):
    """Options of `jsonl`.

    Example: JsonlConfig(path="train.jsonl", columns={"prompt": "question"})
    """

    path: str
    """A file of one JSON object per line."""
    max_prompt_chars: int = field(default=1_000_000, validator=validators.ge(1))
    """Rows with a longer prompt are left out and counted: no model takes them, and each would be tokenized for long."""


def jsonl(config: JsonlConfig) -> list[Row]:
    """Return the rows of a JSON-lines file; blank lines are skipped, and prompts that are too long are left out.

    Raises:
        DatasetError: the file is missing, empty or no file (a pipe has no end), no prompt is short enough, or a line
            (named `file:line`) is no JSON object or lacks a column.
    """
    try:
        path = Path(config.path).expanduser()
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DatasetError(
                f"cannot read the data set {path}",
                why="it is a pipe or a device, and rows are read again in every epoch",
                fix="write the rows into a file",
            )
        with path.open(encoding="utf-8") as file:
            lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            chosen = itertools.islice(lines, config.limit or None)
            rows = [_row(config, f"{path}:{number}", line) for number, line in chosen]
    except DatasetError:
        raise
    except (OSError, ValueError, RuntimeError) as exc:  # bytes that are no text; a path or a home that cannot be
        raise DatasetError(
            f"cannot read the data set {config.path[:200]}", why=str(exc)[:500], fix="correct `data.options.path`"
        ) from exc
    if not rows:
        raise DatasetError(f"the data set {path} has no rows", why="every line is blank")
    return _short_enough(rows, config.max_prompt_chars, path)


def _short_enough(rows: list[Row], limit: int, path: Path) -> list[Row]:
    kept = [row for row in rows if prompt_chars(row.get("prompt", row.get("messages"))) <= limit]
    left_out = f"{len(rows) - len(kept)} of {len(rows)} rows of {path} have a prompt of over {limit:,} characters"
    if not kept:
        raise DatasetError(left_out, why="nothing is left", fix="shorten them, or set data.options.max_prompt_chars")
    if len(kept) < len(rows):
        logger.warning("%s; they are left out (data.options.max_prompt_chars)", left_out)
    return kept


def _row(config: JsonlConfig, where: str, line: str) -> Row:
    try:
        record = json.loads(line)
        # Python reads more than JSON has: NaN, floats without an end, halves of characters. No tokenizer takes those.
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as exc:
        raise DatasetError(
            f"{where}: the line is not JSON", why=str(exc), fix="write one JSON object per line, null for no number"
        ) from exc
    if not isinstance(record, dict):
        raise DatasetError(f"{where}: the line is a {type(record).__name__}", why="it must be a JSON object")
    return shaped(config, record, where)
