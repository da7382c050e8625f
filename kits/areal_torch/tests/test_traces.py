"""A worker traces exactly the steps it was asked for, and never fails for it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from areal_core.contract.errors import ConfigError, UnknownKey, WrongType
from areal_torch.profile import VARIABLE, profile_variables
from areal_torch.traces import StepTraces


def names(path: Path) -> set[str]:
    """Return the names of what a trace shows."""
    with gzip.open(path, "rt") as file:
        return {event.get("name", "") for event in json.load(file)["traceEvents"]}


def asked(folder: Path, *steps: int, replica: int = 0) -> StepTraces:
    variables = profile_variables({"steps": list(steps)}, 10, folder, "actor")
    return StepTraces.asked(variables, replica)


def work(traces: StepTraces, step: int, times: int = 1, calls: int | None = None) -> None:
    for _ in range(times):
        with traces.step(step, 3, "part", calls=calls):
            torch.ones(4) @ torch.ones(4)


def test_only_the_steps_asked_for_are_traced(tmp_path: Path) -> None:
    """One file a step, of every part of it, written when the step is over; the folder is its owner's alone."""
    traces = asked(tmp_path, 2, 4)

    for step in (1, 2, 3, 4):
        work(traces, step, times=2)
        traces.end()

    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["profile/step-2/actor-rank3.json.gz", "profile/step-4/actor-rank3.json.gz"]
    assert {"areal: part", "aten::dot"} <= names(tmp_path / files[0])
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("profile", files[0])] == [0o700, 0o600]


def test_a_step_that_nobody_ended_ends_with_the_next(tmp_path: Path) -> None:
    """Its trace is whole, and the next step's begins anew."""
    traces = asked(tmp_path, 1, 2)

    work(traces, 1)
    work(traces, 2)

    assert (tmp_path / "profile/step-1/actor-rank3.json.gz").exists()
    assert not (tmp_path / "profile/step-2").exists()
    traces.end()
    traces.end()
    assert (tmp_path / "profile/step-2/actor-rank3.json.gz").exists()


def test_a_step_of_many_parts_is_traced_from_its_beginning(tmp_path: Path) -> None:
    """The file is there after so many parts, and the same step does not begin a second record."""
    traces = asked(tmp_path, 1, replica=2)

    work(traces, 1, times=6, calls=3)

    path = tmp_path / "profile/step-1/actor.2-rank3.json.gz"
    with gzip.open(path, "rt") as file:
        parts = [event for event in json.load(file)["traceEvents"] if event.get("name") == "areal: part"]
    assert len([event for event in parts if event.get("cat") == "user_annotation"]) == 3


def test_what_follows_a_step_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Only of a step that this worker traced: a resumed run sends weights of a step that an earlier one made."""
    traces = asked(tmp_path, 1, 2)

    for step in (1, 3, 2):
        with traces.after(step, 0, "weights"):
            torch.ones(2).cumsum(0)
        if step == 3:
            work(traces, 2)

    assert "aten::cumsum" in names(tmp_path / "profile/step-2/actor-rank0-weights.json.gz")
    assert "aten::cumsum" not in names(tmp_path / "profile/step-2/actor-rank3.json.gz")
    assert not (tmp_path / "profile/step-1").exists()


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The worker's log says why; a run folder that somebody removed is not made again."""
    traces = asked(tmp_path / "gone", 1)

    work(traces, 1)
    traces.end()

    assert "no trace" in caplog.text and "step-1" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_without_a_step_nothing_is_asked_of_a_worker(tmp_path: Path) -> None:
    """Neither a variable nor, without one, a record."""
    assert profile_variables({}, 10, tmp_path, "actor") == {}
    assert profile_variables({"steps": []}, 10, tmp_path, "actor") == {}
    work(StepTraces.asked({}), 1)

    assert list(tmp_path.iterdir()) == []
    assert json.loads(profile_variables({"steps": [3, 2, 3]}, 10, tmp_path, "critic")[VARIABLE]) == {
        "folder": str(tmp_path / "profile"),
        "role": "critic",
        "steps": [2, 3],
    }


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"step": [5]}, UnknownKey, "did you mean 'profile.steps'"),
        ({"steps": 5}, WrongType, "wanted a list"),
        ({"steps": ["5"]}, WrongType, r"profile.steps\[0\]: got '5'"),
        ({"steps": [True]}, WrongType, "wanted int"),
        ({"steps": [0]}, WrongType, "must be >= 1"),
        ({"steps": [5, 11]}, ConfigError, "the run has the steps 1 to 10"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_allowed(
    options: dict[str, object], error: type[ConfigError], told: str
) -> None:
    """A key, a type, a step that no run has and one that this run does not have."""
    with pytest.raises(error, match=told):
        profile_variables(options, 10, Path("run"), "actor")
