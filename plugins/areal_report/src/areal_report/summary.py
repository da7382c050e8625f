"""The numbers of a whole run, from what it wrote about its steps.

Knows: the records of `metrics.jsonl` and the events of `events.jsonl`; nothing else is needed,
so the summary of a run that crashed can be made afterwards.
Does not know: the run itself.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.errors import StorageError
from areal_core.observe.events import EVALUATED, RUN_ENDED, RUN_STARTED

Record = Mapping[str, Any]  # Any: numbers, and small mappings of numbers


def summarize(
    records: Sequence[Record],
    events: Sequence[Record] = (),
    *,
    status: str | None = None,
    max_staleness: int | None = None,
    train_backend: str | None = None,
    infer_backend: str | None = None,
) -> dict[str, Any]:
    """Return what `summary.json` holds. Any: strings, numbers, and null where nothing was measured.

    Rewards are means over the first and the last tenth of the steps (at least one step).
    Arguments left out are taken from the events.
    """
    started = next((event for event in reversed(events) if event.get("kind") == RUN_STARTED), {})
    ended = next((event for event in reversed(events) if event.get("kind") in (RUN_ENDED, RUN_STARTED)), {})
    last = records[-1] if records else {}
    tenth = math.ceil(len(records) / 10)
    evaluations = evaluation_points(records, events)
    return {
        "status": status or ended.get("status", "crashed"),
        "steps": int(last.get("step", 0)),
        "seconds": last.get("wall_s", 0.0),
        "reward_first": _mean([record.get("reward") for record in records[:tenth]]),
        "reward_last": _mean([record.get("reward") for record in records[len(records) - tenth :]]),
        "eval_first": evaluations[0][1] if evaluations else None,
        "eval_last": evaluations[-1][1] if evaluations else None,
        "max_staleness_configured": _first(max_staleness, started.get("max_staleness")),
        "max_staleness_seen": max((int(record.get("staleness_max", 0)) for record in records), default=0),
        "episodes_trained": sum(int(record.get("episodes", 0)) for record in records),
        "tokens_generated": int(last.get("tokens_generated", 0)),
        "tokens_trained": int(last.get("tokens_trained", 0)),
        "weight_updates": int(last.get("weight_updates", len(records))),
        "train_backend": _first(train_backend, started.get("train_backend")),
        "infer_backend": _first(infer_backend, started.get("infer_backend")),
        "idle_share_train": idle_share({}, last, "train_busy_s"),
        "idle_share_infer": idle_share({}, last, "infer_busy_s"),
    }


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write `summary.json`, whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """
    unnamed = path.with_name(path.name + ".part")
    try:
        unnamed.write_text(json.dumps(summary, indent=2) + "\n")
        unnamed.rename(path)
    except OSError as error:
        unnamed.unlink(missing_ok=True)
        raise StorageError(f"{path} cannot be written", why=str(error), fix="free space there") from error


def reward_points(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Return (step, mean reward) of every step that has one."""
    return [(record["step"], record["reward"]) for record in records if _is_number(record.get("reward"))]


def evaluation_points(records: Sequence[Record], events: Sequence[Record] = ()) -> list[tuple[float, float]]:
    """Return (version, evaluation reward), by version; of a version evaluated twice the later one counts.

    An evaluation of a version beyond the last step belongs to an attempt that was taken back by a resume.
    """
    points = {
        event["version"]: event["reward"]
        for event in events
        if event.get("kind") == EVALUATED and _is_number(event.get("reward"))
    }
    points.update({r["step"]: r["eval_reward"] for r in records if _is_number(r.get("eval_reward"))})
    last = records[-1]["step"] if records else 0
    return sorted((version, reward) for version, reward in points.items() if version <= last)


def staleness_counts(records: Sequence[Record]) -> dict[int, int]:
    """Return how many episodes were trained on at each staleness, from 0 to the largest seen."""
    counts: Counter[int] = Counter()
    for record in records:
        counts.update({int(lag): int(count) for lag, count in record.get("staleness_histogram", {}).items()})
    return {lag: counts[lag] for lag in range(max(counts) + 1)} if counts else {}


def idle_share(earlier: Record, later: Record, busy: str) -> float | None:
    """Return the share of the time between two records in which nothing was computed; None if no time passed."""
    seconds = later.get("wall_s", 0.0) - earlier.get("wall_s", 0.0)
    if busy not in later or seconds <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - float(later[busy] - earlier.get(busy, 0.0)) / float(seconds)))


def rate(earlier: Record, later: Record, count: str) -> float | None:
    """Return how much a running count grew per second between two records; None if no time passed."""
    seconds = later.get("wall_s", 0.0) - earlier.get("wall_s", 0.0)
    if count not in later or seconds <= 0:
        return None
    return float(later[count] - earlier.get(count, 0.0)) / float(seconds)


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [value for value in values if _is_number(value)]
    return sum(numbers) / len(numbers) if numbers else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
