"""Sinks of hook plugins: they get the numbers of every step, and cannot hurt the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from areal_core.observe.events import EventLog
from areal_core.observe.jsonl import read_lines
from areal_core.observe.metrics import MetricsStream


class Keeping:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.steps: dict[int, Mapping[str, float]] = {}
        self.closed = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep one step."""
        self.steps[step] = values

    def close(self) -> None:
        """Count."""
        self.closed += 1


class Raising(Keeping):
    """A sink whose service is away."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Fail."""
        raise ConnectionError("the service is away")


def test_a_hooked_sink_gets_the_numbers_of_every_step(tmp_path: Path) -> None:
    """From the first step on, and is closed once."""
    sink = Keeping()
    stream = MetricsStream(tmp_path / "metrics.jsonl", sinks=[sink])
    stream.start("run", tmp_path, {})

    stream.write({"step": 1, "reward": 0.5})
    stream.write({"step": 2, "reward": 0.75, "name": "text is no number"})
    stream.close()
    stream.close()

    assert {step: values["reward"] for step, values in sink.steps.items()} == {1: 0.5, 2: 0.75}
    assert "name" not in sink.steps[2]
    assert sink.closed == 1


def test_a_sink_that_raises_is_left_out_and_named(tmp_path: Path) -> None:
    """The file has every step, the other sinks too, and the journal says which sink went."""
    events, kept = EventLog(tmp_path / "events.jsonl"), Keeping()
    stream = MetricsStream(tmp_path / "metrics.jsonl", sinks=[Raising(), kept], events=events)

    for step in (1, 2):
        stream.write({"step": step, "reward": 1.0})
    stream.close()
    events.close()

    assert sorted(kept.steps) == [1, 2]
    assert [record["step"] for record in read_lines(tmp_path / "metrics.jsonl")] == [1, 2]
    (event,) = [e for e in read_lines(tmp_path / "events.jsonl") if e["kind"] == "logger_disabled"]
    assert event["logger"] == "hook 0" and "the service is away" in event["error"]
