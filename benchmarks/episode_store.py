"""What keeping every episode costs a run: seconds of a quickstart's steps with the store against those without it.

The ratio is the median over rounds of the ratio of the two runs of one round, which of them is first alternates: the
load of the machine changes slower than a round takes, and what a round leaves behind meets both alike. Beside that:
seconds to write the episodes of one step of the last run, as the store writes them, as a Parquet row group and as
lines of JSON, each whole on its way to the disk once a step.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import frame
import pyarrow as pa
import pyarrow.parquet as pq
import runs

from areal_core.contract.data import Trajectory
from areal_episodes import schema
from areal_episodes.columns import checksum, to_bytes
from areal_episodes.reader import Filter, Reader


def main() -> int:
    """Run in turns, write the result."""
    options = frame.parser(__doc__).parse_args()
    steps, rounds = (4, 2) if options.quick else (60, 9)
    keep = {"without": 0, "with": 100_000}
    seconds: dict[str, list[float]] = {name: [] for name in keep}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = runs.starting_model("spell", folder, quick=options.quick)
        for number in range(rounds):
            for name in sorted(keep, reverse=number % 2 == 0):
                out = folder / f"{name}-{number}"
                found = runs.areal_train("spell", model, out, [f"steps={steps}", f"episodes.keep={keep[name]}"])
                seconds[name].append(found.after_first_s)
        last = folder / f"with-{rounds - 1}"
        formats = written(last, folder, repeats=3 if options.quick else 30)
        size = (last / schema.FILE).stat().st_size
        with Reader(last) as reader:
            episodes = reader.count()
    ratios = [ours / theirs for ours, theirs in zip(seconds["with"], seconds["without"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    result = frame.Result(
        name="episode_store",
        figure=frame.Figure.of(ratios),
        what="seconds of steps with every episode kept / without",
        details={
            "ratios": ratios,
            "quartiles": [low, high],
            "seconds": seconds,
            "steps": steps,
            "bytes_per_episode": size / episodes,
            "formats": formats,
        },
    )
    return frame.finish(result, quick=options.quick)


def written(run: Path, folder: Path, *, repeats: int) -> dict[str, Any]:
    """Time three ways to write the episodes of one step. Any: json."""
    with Reader(run) as reader:
        step = max(facts["step"] for facts in reader.facts(Filter(fate="trained")))
        numbers = [facts["id"] for facts in reader.facts(Filter(step=step))]
        trajectories = [trajectory for number in numbers for trajectory in reader.trajectories(number)]
        texts = [json.dumps(reader.content(number)[1]) for number in numbers]
    database = schema.create(folder / "sqlite")
    files = count()
    lines = os.open(folder / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    timing = frame.compare(
        {
            "sqlite_safetensors": lambda: _sqlite(database, trajectories, texts),
            "parquet": lambda: _parquet(folder / f"{next(files)}.parquet", trajectories, texts),
            "json_lines": lambda: _lines(lines, trajectories, texts),
        },
        repeats=repeats,
    )
    database.close()
    os.close(lines)
    return {"episodes": len(trajectories), **{f"{name}_s": each.median for name, each in timing.items()}}


def _sqlite(database: sqlite3.Connection, trajectories: Sequence[Trajectory], texts: Sequence[str]) -> None:
    blob = to_bytes(trajectories)
    facts = [
        "train",
        "train/0/0",
        0,
        0,
        0,
        0,
        "finished",
        "trained",
        1.0,
        "{}",
        "ok",
        8,
        8,
        0,
        0,
        "stop",
        0.0,
        0.0,
        "",
        "",
    ]
    database.execute("BEGIN IMMEDIATE")
    chunk = database.execute("INSERT INTO chunks (columns, checksum) VALUES (?, ?)", (blob, checksum(blob))).lastrowid
    database.executemany(schema.INSERT, [(*facts, text, chunk, number, 1) for number, text in enumerate(texts)])
    database.execute("COMMIT")


def _parquet(path: Path, trajectories: Sequence[Trajectory], texts: Sequence[str]) -> None:
    columns: dict[str, Any] = {
        name: [getattr(trajectory, name).numpy() for trajectory in trajectories]
        for name in ("input_ids", "versions", "logprobs", "loss_mask")
    }
    columns["text"] = list(texts)
    columns["reward"] = [trajectory.reward for trajectory in trajectories]
    pq.write_table(pa.table(columns), path)


def _lines(file: int, trajectories: Sequence[Trajectory], texts: Sequence[str]) -> None:
    for trajectory, text in zip(trajectories, texts, strict=True):
        record = {
            "input_ids": trajectory.input_ids.tolist(),
            "versions": trajectory.versions.tolist(),
            "logprobs": trajectory.logprobs.tolist(),
            "loss_mask": trajectory.loss_mask.tolist(),
            "reward": trajectory.reward,
            "text": text,
        }
        os.write(file, json.dumps(record).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
