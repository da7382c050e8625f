"""What every reward function here asks of a completion and a row before it scores, and says of it beforehand.

Knows: stop reasons and column names. Does not know: any score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from areal_core.contract.data import StopReason
from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.rows import Row


@runtime_checkable
class ReadsColumns(Protocol):
    """A reward function that can tell which columns of a row it cannot do without. A dry run asks any reward."""

    def columns(self) -> Sequence[str]: ...


@runtime_checkable
class HasParts(Protocol):
    """A reward function that is made of others, told by name. A dry run shows the call of each."""

    def parts(self) -> Mapping[str, object]: ...


def is_finished(stop_reason: str) -> bool:
    """Tell whether the policy ended the completion itself, rather than the token budget or an abort."""
    return StopReason(stop_reason) in (StopReason.STOP, StopReason.TOOL_CALLS)


def required(row: Row, column: str) -> Any:  # Any: the data set decides
    """Return a column of the row.

    Raises:
        DatasetError: the row lacks it.
    """
    if column not in row:
        raise DatasetError(
            f"the row has no column {column!r}",
            why=f"the reward function reads it; there are {', '.join(sorted(row))}",
            fix="choose another data set or reward function, or map the column with `data.options.columns`",
        )
    return row[column]
