"""The numbers of a whole run, from what it wrote about its steps.

Knows: the steps of `metrics.jsonl` and the events of `events.jsonl`; nothing else is needed,
so the summary of a run that crashed can be made afterwards.
Does not know: the run itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.errors import StorageError
from areal_report.history import History
from areal_report.journal import Journal
from areal_report.rates import START, Record, idle_share


def summarize(history: History, journal: Journal, *, status: str | None = None) -> dict[str, Any]:
    """Return what `summary.json` holds. Any: strings, numbers, and null where nothing was measured.

    Rewards, or losses where nothing is rewarded, are means over the first and the last tenth of the steps.
    `status` is taken from the events if it is left out.
    """
    last: Record = history.last[-1] if history.last else {}
    tenth = math.ceil(len(history.rewards) / 10)
    evaluations = evaluation_points(history, journal)
    return {
        "status": status or journal.ended.get("status", "crashed"),
        "steps": int(last.get("step", 0)),
        "seconds": last.get("wall_s", 0.0),
        f"{history.headline}_first": _mean(history.rewards[:tenth]),
        f"{history.headline}_last": _mean(history.rewards[len(history.rewards) - tenth :]),
        "eval_first": evaluations[0][1] if evaluations else None,
        "eval_last": evaluations[-1][1] if evaluations else None,
        "max_staleness_configured": journal.started.get("max_staleness"),
        "max_staleness_seen": history.max_staleness,
        "episodes_trained": history.num_episodes,
        "tokens_generated": int(last.get("tokens_generated", 0)),
        "tokens_trained": int(last.get("tokens_trained", 0)),
        "weight_updates": int(last.get("weight_updates", history.num_steps)),
        "train_backend": journal.started.get("train_backend"),
        "infer_backend": journal.started.get("infer_backend"),
        "idle_share_train": idle_share(START, last, "train_busy_s"),
        "idle_share_infer": idle_share(START, last, "infer_busy_s"),
        "prompts_lost": journal.prompts and journal.prompts.lost,
        "prompts_twice": journal.prompts and journal.prompts.twice,
        "episodes_failed": journal.num_failed,
        "restarts": journal.restarts,
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


def reward_points(history: History) -> list[tuple[float, float]]:
    """Return (step, mean reward) of the steps that have one, or their loss where nothing is rewarded."""
    name = history.headline
    return [(record["step"], record[name]) for record in history.records if _is_number(record.get(name))]


def evaluation_points(history: History, journal: Journal) -> list[tuple[float, float]]:
    """Return (version, evaluation reward), by version; of a version evaluated twice the later one counts.

    An evaluation of a version beyond the last step belongs to an attempt that was taken back by a resume.
    """
    points = {at: reward for at, reward in (journal.evaluations | history.evaluations).items() if _is_number(reward)}
    last = history.last[-1]["step"] if history.last else 0
    return sorted((version, reward) for version, reward in points.items() if version <= last)


def smoothed(points: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], int]:
    """Return the mean over a window of a tenth of the points, centred where it can be, and how many points that is."""
    half = max(1, len(points) // 20)
    smooth, total, first, last = [], 0.0, 0, 0
    for at, (x, _) in enumerate(points):
        while last < min(len(points), at + half + 1):
            total, last = total + points[last][1], last + 1
        while first < at - half:
            total, first = total - points[first][1], first + 1
        smooth.append((x, total / (last - first)))
    return smooth, 2 * half + 1


def staleness_counts(history: History) -> dict[int, int]:
    """Return how many episodes were trained on at each staleness, from 0 to the largest seen."""
    counts = history.staleness
    return {lag: counts[lag] for lag in range(max(counts) + 1)} if counts else {}


def _mean(values: Sequence[float]) -> float | None:
    numbers = [value for value in values if math.isfinite(value)]
    return sum(numbers) / len(numbers) if numbers else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
