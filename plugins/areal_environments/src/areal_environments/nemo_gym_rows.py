"""The data set `nemo_gym`: rows in NeMo Gym's JSONL form, as they are.

Knows: the file. It is read and checked whole, so that a bad row stops a run before a model loads.
Does not know: servers, or what a row's own columns mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import field, frozen, validators

from areal_core.contract.errors import DatasetError
from areal_environments.played import Row
from areal_environments.responses import chat_messages, chat_tools

PARAMETERS = "responses_create_params"


@frozen(kw_only=True)
class NemoGymRows:
    """Options of the data set `nemo_gym`.

    Example: NemoGymRows(path="resources_servers/workplace_assistant/data/train.jsonl", limit=1000)
    """

    path: str = field(validator=validators.min_len(1))
    """A file of one JSON object per line, each with `responses_create_params`."""
    limit: int = field(default=0, validator=validators.ge(0))
    """Rows at most, the first ones; 0 takes all."""


def rows(config: NemoGymRows) -> Sequence[Row]:
    """Return the rows of a file; blank lines are skipped.

    Raises:
        DatasetError: the file cannot be read or has no rows, or a line (named FILE:LINE) is none of NeMo Gym's.
    """
    path = Path(config.path).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            made = [_row(f"{path}:{number}", line) for number, line in islice(lines, config.limit or None)]
    except DatasetError:
        raise
    except (OSError, ValueError) as error:  # ValueError: bytes that are no text
        raise DatasetError(f"cannot read {path}", why=str(error), fix="correct data.options.path") from error
    if not made:
        raise DatasetError(f"{path} has no rows", why="every line is blank", fix="correct data.options.path")
    return made


def parameters(row: Row) -> Mapping[str, Any]:  # Any: JSON
    """Return what a row asks for, as a request of the Responses API.

    Raises:
        DatasetError: it is none of NeMo Gym's.
    """
    given = row.get(PARAMETERS)
    if not isinstance(given, Mapping) or "input" not in given:
        fix = "give NeMo Gym's own JSONL to data.name: nemo_gym"
        raise DatasetError(f"a row has no {PARAMETERS}.input", why="NeMo Gym's rows do", fix=fix)
    return given


def _row(where: str, line: str) -> Row:
    try:
        row = json.loads(line)
        given = parameters(row)
        chat_messages(given["input"])
        chat_tools(given.get("tools") or ())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = error.what if isinstance(error, DatasetError) else f"{type(error).__name__}: {error}"
        fix = error.fix if isinstance(error, DatasetError) else "correct the line, or leave it out"
        raise DatasetError(f"{where} is no row of NeMo Gym", why=why, fix=fix) from error
    return row  # type: ignore[no-any-return]
