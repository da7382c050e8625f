"""A run is followed while it is written, in memory that does not grow with it."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from areal_view.lines import BLOCK, GrowingLines
from areal_view.runs import MAX_DEPTH, Run, Runs
from areal_view.series import MAX_NAMES, MAX_POINTS, Curves, Series, numbers, smoothed
from areal_view.state import RunState


class Taken:
    """What a file gave."""

    def __init__(self, path: Path) -> None:
        self.records = list[dict[str, Any]]()
        self.lines = GrowingLines(path, take=self.records.append, forget=self.records.clear)

    def read(self) -> list[Any]:
        """Read on, and return all there is."""
        self.lines.read()
        return [record.get("n") for record in self.records]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """Every line once, whatever the moment it is looked at."""
    path = tmp_path / "lines"
    taken = Taken(path)
    text = "".join(json.dumps({"n": number, "text": "ä" * 5}) + "\n" for number in range(4)).encode()

    seen = [taken.read()]
    for end in range(0, len(text) + 1, 7):
        path.write_bytes(text[:end])
        seen.append(taken.read())
    path.write_bytes(text)

    assert seen[0] == []
    assert all(earlier == later[: len(earlier)] for earlier, later in pairwise(seen))
    assert taken.read() == [0, 1, 2, 3]


def test_a_file_that_is_replaced_or_cut_is_read_anew(tmp_path: Path) -> None:
    """A resumed run drops the lines of steps it makes again."""
    path, other = tmp_path / "lines", tmp_path / "other"
    taken = Taken(path)
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    taken.read()

    other.write_text('{"n": 1}\n{"n": 9}\n{"n": 8}\n')
    other.rename(path)
    replaced = taken.read()
    path.write_text('{"n": 5}\n')

    assert (replaced, taken.read()) == ([1, 9, 8], [5])


def test_broken_and_endless_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    """No JSON, no object, nested too deep, NaN, longer than a block: the rest is read all the same."""
    path = tmp_path / "lines"
    taken = Taken(path)
    deep = b"[" * 200_000
    endless = b'{"n": "' + b"x" * (2 * BLOCK) + b'"}'
    path.write_bytes(
        b"\n".join([b"no", b"[1]", b'{"n": 1}', deep, endless, b'{"n": NaN}', b'\xff{"n": 3}', b'{"n": 2}', b""])
    )

    assert taken.read() == [1, None, 2]
    assert taken.lines.num_broken == 5


def test_a_long_file_is_caught_up_with_in_pieces(tmp_path: Path) -> None:
    """One look reads no more than its budget, and says that there is more."""
    path = tmp_path / "lines"
    taken = Taken(path)
    path.write_text("".join(f'{{"n": {number}, "pad": "{"x" * 1000}"}}\n' for number in range(4000)))

    taken.lines.read(budget=BLOCK)
    first = (len(taken.records), taken.lines.caught_up)
    while not taken.lines.caught_up:
        taken.lines.read(budget=BLOCK)

    assert first[0] < 1100
    assert not first[1]
    assert [record["n"] for record in taken.records] == list(range(4000))


def test_a_file_that_is_no_plain_one_holds_nothing(tmp_path: Path) -> None:
    """A folder under its name does not stop the page."""
    (tmp_path / "lines").mkdir()

    assert Taken(tmp_path / "lines").read() == []


def test_a_series_of_any_length_has_few_points_and_keeps_the_mean() -> None:
    """Neighbours become one; the mean over all stays."""
    series, num_steps = Series(), MAX_POINTS * 64
    for step in range(1, num_steps + 1):
        series.add(step, float(step % 10))

    points = series.points()
    assert MAX_POINTS // 2 <= len(points) <= MAX_POINTS
    assert points == sorted(points)
    assert sum(value for _, value in points) / len(points) == pytest.approx(4.5, abs=0.01)


def test_a_short_series_is_exact() -> None:
    """Nothing is averaged before there are too many points."""
    series = Series()
    for step in range(1, 6):
        series.add(step, step / 2)

    assert series.points() == [(step, step / 2) for step in range(1, 6)]


def test_names_are_bounded_and_what_is_no_number_is_left_out() -> None:
    """A file that makes up metrics costs no memory."""
    curves = Curves()
    for step in range(3 * MAX_NAMES):
        record: dict[str, object] = {f"n{step}": 1, "a": float("nan"), "b": 10**400, "c": "x", "d": {"e": 1}}
        curves.add(step, numbers(record))

    assert len(curves.names()) == MAX_NAMES
    assert {"a", "b", "c", "d"} & set(curves.names()) == set()


def test_a_rate_is_taken_over_windows_and_never_negative() -> None:
    """Totals are read once a second: from one step to the next they stand still or leap. A resume begins anew."""
    curves = Curves()
    for step in range(1, 101):
        counted = 1000 * (step // 5) if step <= 50 else 1000 * ((step - 50) // 5)
        curves.add(step, iter([("wall_s", 0.2 * (step if step <= 50 else step - 50)), ("made", float(counted))]))

    rates = [value for _, value in curves.rate("made")]
    assert rates
    assert min(rates) >= 0
    assert sum(rates) / len(rates) == pytest.approx(1000, rel=0.3)


def test_smoothing_keeps_steps_and_a_constant() -> None:
    """A mean over a window that is cut at the ends."""
    flat = [(float(step), 2.0) for step in range(50)]

    assert smoothed(flat, 0.2) == flat
    assert smoothed([(1, 0.0), (2, 3.0), (3, 0.0)], 0.7) == [(1, 1.5), (2, 1.0), (3, 1.5)]


def test_runs_are_found_below_a_folder_and_links_and_hidden_ones_are_not(tmp_path: Path, make_run: Any) -> None:
    """Nothing inside a run is looked at; an id names no path."""
    make_run("a")
    make_run("deep/b")
    make_run("a/checkpoints/c")
    make_run(".hidden/d")
    make_run("/".join("x" * (MAX_DEPTH + 2)))
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "runs" / "a")

    found = Runs(tmp_path / "runs").all()

    assert {run.name for run in found} == {"a", "deep/b"}
    assert all(run.id.isalnum() for run in found)
    assert Runs(tmp_path / "runs").one(found[0].id) == found[0]
    with pytest.raises(KeyError):
        Runs(tmp_path / "runs").one("../a")


def test_a_run_folder_itself_is_a_run(make_run: Any) -> None:
    """`areal view runs/NAME` works as `areal view runs` does."""
    assert [run.name for run in Runs(make_run("alone").folder).all()] == ["alone"]


def state_of(folder: Path) -> RunState:
    """Return a run's state, read once."""
    state = RunState(Run(id="x", name=folder.name, folder=folder, changed=0.0))
    state.refresh()
    return state


def test_a_state_says_how_the_run_stands(make_run: Any) -> None:
    """Ended as it says, crashed without a word when nobody holds its folder; a resume begins again."""
    run = make_run("a")
    run.steps(1, 5)
    run.event("evaluated", at=0.0, version=0, reward=0.25)
    begun = state_of(run.folder)
    run.event("run_ended", at=10.0, status="finished")
    ended = state_of(run.folder)
    run.event("run_started", at=11.0)

    assert (begun.status(), ended.status(), state_of(run.folder).status()) == ("crashed", "finished", "crashed")
    assert (begun.last_step, begun.backends) == (5, "fsdp:d1 · reference:d2")
    assert begun.points("eval_reward") == [(0.0, 0.25)]


def test_what_the_fleet_made_is_divided_by_the_time_it_was_read_in(make_run: Any) -> None:
    """Its totals stand still between two readings; the clock of the steps does not."""
    run = make_run("a")
    for step in range(1, 41):
        read = 4 * (step // 4)
        totals = {
            "tokens_generated": 100 * read,
            "infer_busy_s": read / 2,
            "infer_wall_s": read,
            "train_busy_s": step / 4,
        }
        run.line("metrics.jsonl", {"step": step, "wall_s": step, **totals})

    state = state_of(run.folder)

    assert {round(value) for _, value in state.points("rate:tokens_generated")} == {100}
    assert {round(value, 3) for _, value in state.points("rate:infer_busy_s")} == {0.5}
    assert {round(value, 3) for _, value in state.points("rate:train_busy_s")} == {0.25}


def test_step_times_follow_one_another(make_run: Any) -> None:
    """Waiting, training, update, and what is left; a step begins where the one before it ended."""
    run = make_run("a")
    run.steps(1, 3, eval_s=0.0)

    first, second, _ = state_of(run.folder).steps(1, 3)

    assert (first.wait_s, first.train_s, first.sync_s) == (1.0, 0.6, 0.4)
    assert first.other_s == pytest.approx(0.0, abs=1e-9)
    assert first.end == pytest.approx(second.start)


def test_hostile_lines_cost_nothing(make_run: Any) -> None:
    """Steps, times and versions that are no numbers, or too large, are left out."""
    run = make_run("a")
    for value in ("x", None, -1, 10**400, [], {}, True):
        run.line("metrics.jsonl", {"step": value, "time": value, "seconds": value, "reward": value})
        run.line("events.jsonl", {"time": value, "kind": value, "version": value, "reward": value})
    run.steps(1, 2)

    state = state_of(run.folder)

    assert state.last_step == 2
    assert [each.step for each in state.steps(2, 2)] == [2]


def test_memory_of_a_state_does_not_grow_with_the_run(make_run: Any) -> None:
    """Ten times the steps and events, about the same memory."""
    sizes = []
    for num_steps in (2_000, 20_000):
        run = make_run(f"of-{num_steps}")
        with (run.folder / "metrics.jsonl").open("w") as file:
            for step in range(num_steps):
                file.write(json.dumps({"step": step, "loss": 0.5, "reward": 1.0, "wall_s": step}) + "\n")
        with (run.folder / "events.jsonl").open("w") as file:
            for step in range(num_steps):
                file.write(json.dumps({"time": step, "kind": "note", "text": "x" * 100}) + "\n")
        tracemalloc.start()
        state = state_of(run.folder)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert state.last_step == num_steps - 1

    assert sizes[1] < 1.5 * sizes[0]


def test_a_run_without_rewards_tells_its_loss(make_run: Any) -> None:
    """Supervised runs have no reward; a run that has both tells the reward."""
    told = {}
    for name, keys in {"supervised": ("loss",), "rl": ("loss", "reward"), "nothing": ()}.items():
        run = make_run(name)
        with (run.folder / "metrics.jsonl").open("w") as file:
            for step in (0, 1):
                file.write(json.dumps({"step": step, "wall_s": step, **dict.fromkeys(keys, 1.0 / (step + 1))}) + "\n")
        told[name] = state_of(run.folder).told()

    assert [each.metric for each in told.values()] == ["loss", "reward", "reward"]
    assert (told["supervised"].first, told["supervised"].last) == (1.0, 0.5)
    assert told["nothing"].first is None
