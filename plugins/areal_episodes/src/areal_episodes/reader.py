"""Reading episodes, of a run that ended or goes on, never more than one chunk at a time in memory.

Knows: filters and orders as SQL.
Does not know: how an episode is shown (`show`), how many look together (`spread`), or how it is written (`store`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import frozen
from torch import Tensor

from areal_core.contract.data import Trajectory
from areal_episodes import schema
from areal_episodes.columns import from_bytes
from areal_episodes.step_columns import columns_of

_FACTS = (
    "id, kind, task_id, task_index, attempt, member, version, outcome, fate, step, reward, parts, reward_status, "
    "prompt_tokens, output_tokens, oldest_version, newest_version, stop, started, seconds, replica, error"
)


class Order(StrEnum):
    """Which episodes come first."""

    OLDEST = "oldest"
    NEWEST = "newest"
    BEST = "best"
    WORST = "worst"
    LONGEST = "longest"
    SHORTEST = "shortest"


_ORDERS = {
    Order.OLDEST: "id",
    Order.NEWEST: "id DESC",
    Order.BEST: "reward DESC, id",
    Order.WORST: "reward IS NULL, reward, id",
    Order.LONGEST: "output_tokens DESC, id",
    Order.SHORTEST: "output_tokens, id",
}


@frozen(kw_only=True)
class Filter:
    """Which episodes to read; None leaves a question out."""

    step: int | None = None
    """Trained in this step."""
    task: str | None = None
    """Of this task id, or of tasks whose id begins so."""
    fate: str | None = None
    kind: str | None = None
    status: str | None = None
    """What became of its reward: ok, raised, timeout, ..."""
    steps: tuple[int, int] | None = None
    """Trained in a step from the first of these to the last."""
    group: tuple[int, int] | None = None
    """The members of one group: task index and attempt."""
    text: str | None = None
    """Text in a turn, in the row or in the error; upper and lower case count the same."""

    def where(self) -> tuple[str, list[object]]:
        """Return a condition and its values."""
        conditions, values = ["1"], list[object]()
        equal = {"step": self.step, "fate": self.fate, "kind": self.kind, "reward_status": self.status}
        for column, value in equal.items():
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        if self.steps is not None:
            conditions.append("step BETWEEN ? AND ?")
            values += self.steps
        if self.group is not None:
            conditions.append("task_index = ? AND attempt = ?")
            values += self.group
        if self.task is not None:
            conditions.append("(task_id = ? OR substr(task_id, 1, ?) = ?)")
            values += [self.task, len(self.task) + 1, f"{self.task}/"]
        if self.text is not None:
            quoted = json.dumps(self.text)[1:-1]  # as it stands in the JSON of turns and rows
            in_row = "task_id IN (SELECT task_id FROM tasks WHERE instr(lower(row), ?))"
            conditions.append(f"(instr(lower(text), ?) OR instr(lower(error), ?) OR {in_row})")
            values += [quoted.lower(), self.text.lower(), quoted.lower()]
        return " AND ".join(conditions), values


class Reader:
    """The store of a run folder, to read."""

    def __init__(self, folder: Path) -> None:
        """Open it.

        Raises:
            StorageError: there is none, or it cannot be read.
        """
        self.path = folder / schema.FILE
        self._database = schema.open_to_read(self.path)
        self._chunk: tuple[int, tuple[Trajectory, ...]] = (-1, ())

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it. Idempotent."""
        self._database.close()

    def count(self, chosen: Filter | None = None) -> int:
        """Return how many episodes there are."""
        where, values = (chosen or Filter()).where()
        return int(self._database.execute(f"SELECT count(*) FROM episodes WHERE {where}", values).fetchone()[0])

    def facts(
        self, chosen: Filter | None = None, *, order: Order = Order.OLDEST, limit: int = -1, skip: int = 0
    ) -> Iterator[Mapping[str, Any]]:
        """Yield everything of episodes but row, text and columns. Any: numbers and strings, by column name."""
        where, values = (chosen or Filter()).where()
        found = self._database.execute(
            f"SELECT {_FACTS} FROM episodes WHERE {where} ORDER BY {_ORDERS[order]} LIMIT ? OFFSET ?",
            [*values, limit, skip],
        )
        for row in found:
            yield {**dict(row), "parts": json.loads(row["parts"])}

    def steps(self) -> dict[int, int]:
        """Return how many episodes there are of every step that trained some."""
        found = "SELECT step, count(*) FROM episodes WHERE fate = 'trained' GROUP BY step ORDER BY step"
        return {int(step): int(count) for step, count in self._database.execute(found)}

    def trained(self, step: int) -> Iterator[tuple[Mapping[str, Any], tuple[Trajectory, ...]]]:
        """Yield facts and columns of what a step trained, in the order of the file. Any: as in `facts`.

        Raises:
            StorageError: bytes are damaged.
        """
        for row in self._database.execute(
            f"SELECT {_FACTS} FROM episodes WHERE fate = 'trained' AND step = ? ORDER BY chunk, first", [step]
        ):
            yield {**dict(row), "parts": json.loads(row["parts"])}, self.trajectories(row["id"])

    def one(self, number: int) -> Mapping[str, Any]:
        """Return what `facts` gives of one episode. Any: as there.

        Raises:
            KeyError: there is no such episode.
        """
        found = self._one(number, _FACTS)
        return {**dict(found), "parts": json.loads(found["parts"])}

    def excerpts(self, number: int, length: int) -> tuple[str, str]:
        """Return how the first turn of an episode begins, and its last one.

        Raises:
            KeyError: there is no such episode.
        """
        cut = "substr(coalesce(json_extract(text, '{path}'), ''), 1, {length}) AS {name}"
        first = cut.format(path="$[0][0].text", length=int(length), name="first_turn")
        last = cut.format(path="$[#-1][#-1].text", length=int(length), name="last_turn")
        found = self._one(number, f"{first}, {last}")
        return found["first_turn"], found["last_turn"]

    def content(self, number: int) -> tuple[Mapping[str, Any], list[list[dict[str, str]]]]:
        """Return the row of an episode, and the turns of each of its trajectories. Any: JSON.

        Raises:
            KeyError: there is no such episode.
        """
        found = self._one(number, "text, (SELECT row FROM tasks WHERE tasks.task_id = episodes.task_id) AS row")
        return json.loads(found["row"]), json.loads(found["text"])

    def trajectories(self, number: int) -> tuple[Trajectory, ...]:
        """Return the columns of an episode.

        Raises:
            KeyError: there is no such episode.
            StorageError: its bytes are damaged.
        """
        found = self._one(number, "chunk, first, count")
        if self._chunk[0] != found["chunk"]:
            blob = self._database.execute(
                "SELECT columns, checksum FROM chunks WHERE id = ?", (found["chunk"],)
            ).fetchone()
            where = f"chunk {found['chunk']} of {self.path}"
            self._chunk = (found["chunk"], from_bytes(blob["columns"], blob["checksum"], where))
        return self._chunk[1][found["first"] : found["first"] + found["count"]]

    def learned(self, number: int) -> list[dict[str, Tensor]]:
        """Return, per trajectory of an episode, the columns with which its step trained it; none if none are kept.

        Raises:
            KeyError: there is no such episode.
            StorageError: the bytes are damaged.
        """
        step = self._one(number, "CASE fate WHEN 'trained' THEN step END AS step")["step"]
        if not self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone():
            return []  # of an areal that kept none
        kept = self._database.execute("SELECT columns, checksum FROM steps WHERE step = ?", (step,)).fetchone()
        where = f"step {step} of {self.path}"
        return columns_of(number, kept["columns"], kept["checksum"], where) if kept else []

    def _one(self, number: int, columns: str) -> sqlite3.Row:
        found: sqlite3.Row | None = self._database.execute(
            f"SELECT {columns} FROM episodes WHERE id = ?", (number,)
        ).fetchone()
        if found is None:
            raise KeyError(number)
        return found
