"""Where two runs part: the cause is named before what came of it, and times never count."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.errors import StorageError
from areal_core.observe.jsonl import read_lines
from areal_episodes.replaying.comparison import Comparison, first_difference
from areal_episodes.replaying.run_steps import RunSteps

PAGE = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()

STEP: dict[str, Any] = {
    "step": 3,
    "seconds": 1.0,
    "reward": 0.5,
    "loss": 0.25,
    "grad_norm": 1.5,
    "lr": 1e-4,
    "staleness_histogram": {"0": 4},
    "train_s": 0.1,
    "infer/queue": 2.0,
    "train/clip_share": 0.1,
    "train/seconds": 2.0,
    "weights": "abc",
}


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 2.0, "train_s": 7.0, "infer/queue": 0.0, "train/seconds": 9.0},
        {"weights_of_tomorrow": 1},
    ],
)
def test_times_and_metrics_of_one_version_alone_do_not_count(changes: dict[str, Any]) -> None:
    """They say nothing of what was learned."""
    assert first_difference(STEP, {**STEP, **changes}) is None
    assert first_difference({**STEP, **changes}, STEP) is None


def test_no_metric_that_depends_on_time_is_compared() -> None:
    """Of all on the page of metrics: those in seconds, and those about speed. A device with a known peak has one."""
    speed = PAGE.partition("## Speed")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| s \|", PAGE, re.MULTILINE) + re.findall(r"^\| (`.+?) \|", speed, re.MULTILINE)
    timed = re.findall(r"`([^`]+)`", " ".join(rows))

    assert {"seconds", "train_busy_s", "train/peak_share"} <= set(timed)
    assert first_difference(dict.fromkeys(timed, 1.0), {**dict.fromkeys(timed, 2.0), "step": 1}) is None


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"weights": "abd"}, "weights"),
        ({"weights": "abd", "loss": 0.25000000000000006}, "loss"),
        ({"weights": "abd", "loss": 0.3, "train/clip_share": 0.2}, "train/clip_share"),
        ({"loss": 0.3, "train/clip_share": 0.2, "reward": 0.6}, "reward"),
        ({"staleness_histogram": {"0": 3, "1": 1}}, "staleness_histogram"),
        ({"grad_norm": float("nan")}, "grad_norm"),
    ],
)
def test_what_was_given_is_named_before_what_was_computed(changes: dict[str, Any], metric: str) -> None:
    """With both values, one bit apart or more."""
    found = first_difference(STEP, {**STEP, **changes})

    assert found is not None and (found.step, found.metric) == (3, metric)
    assert f"step 3: {metric} is " in str(found) and repr(STEP[metric]) in str(found)


def test_no_number_is_the_same_as_no_number() -> None:
    """The file of metrics holds null for it."""
    assert first_difference({**STEP, "loss": None}, {**STEP, "loss": float("nan")}) is None


def test_the_first_difference_ends_the_comparison() -> None:
    """Every step is shown; those after the first difference differ anyway."""
    shown, ended = list[int](), list[bool]()

    class View:
        def step(self, record: Any) -> None:
            shown.append(record["step"])

        def note(self, text: str) -> None:
            """Nothing is told."""

    comparison = Comparison(View(), {n: {**STEP, "step": n} for n in (1, 2, 3)}, lambda: ended.append(True))
    for number, loss in ((1, 0.25), (2, 0.5), (3, 0.75)):
        comparison.step({**STEP, "step": number, "loss": loss})

    assert (comparison.compared, shown, ended) == (1, [1, 2, 3], [True])
    assert comparison.divergence is not None and comparison.divergence.step == 2


@given(steps=st.lists(st.integers(1, 9), max_size=12), torn=st.integers(0, 20))
def test_the_steps_of_a_run_are_those_of_its_file_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], torn: int
) -> None:
    """Of a step that stands twice the last line counts; a torn line is none."""
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    records = [{"step": step, "episodes": 10 * step, "loss": number} for number, step in enumerate(steps)]
    text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    path.write_bytes(text[: max(0, len(text) - torn)])

    whole = {int(record["step"]): record for record in read_lines(path)}
    read = RunSteps(path)

    assert read.episodes == {step: record["episodes"] for step, record in whole.items()}
    assert {step: read[step] for step in read.episodes} == whole


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    """As every reader of the file does it."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "episodes": 2}\n{"step"\n')

    with pytest.raises(StorageError, match="line 2 of"):
        RunSteps(path)
