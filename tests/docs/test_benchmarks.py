"""Every benchmark tells a goal, its turns and their spread; the page's table is what the results in the tree give."""

from __future__ import annotations

import ast
import json
import random
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # scripts find one another in their own folder
import frame
import goals
import table

BENCHMARKS = Path(sys.path.pop(0))
SCRIPTS = [path for path in sorted(BENCHMARKS.glob("*.py")) if "frame.Result(" in path.read_text(encoding="utf-8")]


def of_script(name: str) -> str:
    """Return the script that writes a result: the longest of which the result's name begins with the name."""
    return max((path.stem for path in SCRIPTS if f"{name}_".startswith(f"{path.stem}_")), key=len, default="")


def targets(script: str) -> set[float]:
    """Return every bound of a script's results."""
    mine = [goal.target for name, goal in goals.GOALS.items() if of_script(name) == script]
    return {target for target in mine if target is not None}


def numbers(text: str) -> set[float]:
    """Return the numbers that a cell tells."""
    return {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}


def calls_of_result(path: Path) -> Iterator[ast.Call]:
    """Yield every place where a script makes a result."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "frame.Result":
            yield node


def record(name: str, ratio: float, **more: Any) -> dict[str, Any]:  # Any: json
    """Return what the table reads of a result."""
    machine = {"cpu": "Intel(R) Xeon(R) Processor", "cores": 2, "load": 1.0, "busy_cores_at_start": 0.0}
    made = {
        "name": name,
        "ratio": ratio,
        "command": f"python benchmarks/{name}.py",
        "date": "2026-12-01T10:00:00+00:00",
    }
    return {**made, "machine": machine | more.pop("machine", {}), "details": {}, **more}


def cells(row: table.Row, made: dict[str, Any] | None) -> list[str]:
    """Return the cells of a row."""
    return [cell.strip() for cell in table.told(row, made).strip("|").split("|")]


def test_the_table_of_the_page_is_what_the_results_give() -> None:
    """`python benchmarks/table.py --write` was run after the last result and the last change of a goal."""
    page = table.PAGE.read_text(encoding="utf-8")

    assert table.with_table(page, table.table(table.RESULTS)) == page


def test_every_result_in_the_tree_has_a_row() -> None:
    """A figure that was measured and is missed cannot be left out of the page."""
    assert {path.stem for path in table.RESULTS.glob("*.json")} <= {row.name for row in table.ROWS}


def test_a_page_that_differs_is_told_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--write` the exit code tells; what is around the table stays as it is."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{table.BEGIN}\nan older table\n{table.END}\n\nafter\n")
    (tmp_path / "packing.json").write_text(json.dumps(record("packing", 2.0)))

    def main(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["table.py", "--results", str(tmp_path), "--page", str(page), *words])
        return table.main()

    before, written, after = main(), main("--write"), main()

    assert (before, written, after) == (1, 0, 0)
    text = page.read_text()
    assert (
        text.startswith("before\n")
        and text.endswith("\nafter\n")
        and "| 2.00 |" in text
        and "an older table" not in text
    )


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    """Nothing is written into a page that somebody changed."""
    with pytest.raises(SystemExit, match="no <!-- results -->"):
        table.with_table("no table", "| |")


def test_a_goal_is_that_of_today_whatever_the_file_says() -> None:
    """A goal that was raised after a figure was measured is missed."""
    made = record("train_step", 0.97, target=0.95, met=True)

    assert cells(table.Row("a step", "train_step"), made)[4:6] == ["at least 1", "missed"]


def test_turns_are_told_where_a_file_has_them() -> None:
    """An older file has no spread; a detail that a newer one has may be a number or a figure."""
    row, part = table.Row("a", "scale"), table.Row("b", "scale", ("of", "it"))
    newer = record("scale", 1.1, spread=[1.0, 1.25], repeats=5, details={"of": {"it": {"ratio": 2.0, "repeats": 1}}})

    assert cells(row, record("scale", 1.1))[1:4] == ["1.10", "", ""]
    assert cells(row, newer)[1:4] == ["1.10", "1.00 to 1.25", "5"]
    assert cells(part, newer)[1:6] == ["2.00", "", "1", "", ""], "a detail has no goal unless it is judged"
    assert cells(part, record("scale", 1.1))[6] == cells(row, None)[6] == "not yet"


def test_train_engines_have_rows_of_their_own() -> None:
    """Only cases that decide: over data ranks, without options, not padded."""
    titles = ("small fsdp:d2", "tiny archon:d1", "small fsdp:d1t2", "small fsdp:d1 padded")
    made = record("train_step", 0.9, details={"cases": {title: {"ratio": 1.0} for title in titles}})

    _, *found = table.parts(table.Row("a step", "train_step"), made)

    assert [row.words for row in found] == [
        "the same: `fsdp`, 4 million parameters, 2 ranks",
        "the same: `archon`, 76k parameters, 1 rank",
    ]


@pytest.mark.parametrize(
    ("machine", "words", "busy"),
    [
        ({"load": 3.0}, "", False),  # its own
        ({"busy_cores_at_start": 0.4}, "", True),
        ({"busy_cores_at_end": 0.4}, "", True),
        ({}, " --busy", True),
        ({"busy_cores_at_start": None, "load": 2.7}, "", False),
        ({"busy_cores_at_start": None, "load": 4.1}, "", True),
    ],
)
def test_what_was_measured_beside_other_work_says_so(machine: dict[str, Any], words: str, busy: bool) -> None:
    """Cores that others kept busy, the flag that allows it, or of an older file the load."""
    made = record("rpc", 0.1, machine=machine)
    made["command"] += words

    assert cells(table.Row("a", "rpc"), made)[6] == f"2026-12-01, Intel Xeon{', busy' if busy else ''}"


def test_equal_sides_are_at_one() -> None:
    """Whatever the turns had: each against itself."""
    assert frame.Figure.of([3.0, 1.0, 2.0], [3.0, 1.0, 2.0]) == frame.Figure(ratio=1.0, repeats=3, spread=(1.0, 1.0))


def test_a_ratio_lies_within_what_its_turns_had() -> None:
    """The ratio of medians (or means, or the worst) is no less than the least turn and no more than the most."""
    draw = random.Random(1)
    for _ in range(300):
        over, under = ([draw.uniform(0.1, 9.0) for _ in range(draw.randint(2, 7))] for _ in range(2))
        size = min(len(over), len(under))
        for middle in (statistics.median, statistics.fmean, max):
            for below in (under[:size], 2.5):
                found = frame.Figure.of(over[:size], below, middle=middle)

                assert found.spread is not None
                least, most = found.spread
                assert least - 1e-9 <= found.ratio <= most + 1e-9


def test_turns_may_come_in_any_order_as_long_as_their_sides_stay_together() -> None:
    """What is compared is one turn with itself."""
    turns = [(1.0, 2.0), (4.0, 3.0), (2.0, 5.0)]
    found = {frame.Figure.of(*zip(*order, strict=True)) for order in (turns, turns[::-1], turns[1:] + turns[:1])}

    assert found == {frame.Figure(ratio=2.0 / 3.0, repeats=3, spread=(0.4, 4.0 / 3.0))}


def test_a_single_turn_has_no_spread() -> None:
    """Nobody can tell how far it would have gone."""
    once = frame.Figure.of([2.0], 4.0)

    assert once == frame.Figure(ratio=0.5, repeats=1, spread=None)
    assert str(once) == "0.5, measured once"


def test_sides_of_unequal_turns_are_refused() -> None:
    """A side that was measured once more is of no turn."""
    with pytest.raises(ValueError, match="zip"):
        frame.Figure.of([1.0, 2.0], [1.0])


def test_a_result_keeps_its_turns_and_its_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the top of the file and in the line; single values of a side are kept too."""
    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    timing = frame.Timing.of([3.0, 4.0, 5.0])
    figure = frame.Figure.of(timing.seconds, 2.0)

    frame.finish(frame.Result(name="packing", figure=figure, what="a / b", details={"a": timing}), quick=False)

    kept = json.loads((tmp_path / "packing.json").read_text())
    expected = {"ratio": 2.0, "repeats": 3, "spread": [1.5, 2.5], "target": 1.5, "lower_is_better": False, "met": True}
    assert expected == {name: kept[name] for name in expected}
    assert kept["details"]["a"]["seconds"] == [3.0, 4.0, 5.0]
    assert capsys.readouterr().out == "packing: 2, 1.5 to 2.5 in 3 turns (a / b; goal: at least 1.5) met\n"


def test_every_goal_is_of_a_script_and_every_script_has_one() -> None:
    """A benchmark that is to reach nothing says so."""
    assert {of_script(name) for name in goals.GOALS} == {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_tells_turns_and_leaves_goals_where_they_stand(path: Path) -> None:
    """A result is made of a figure, which has its repeats, and of no bound of the script's own."""
    given = [{keyword.arg for keyword in call.keywords} for call in calls_of_result(path)]

    assert given, path
    assert all(
        {"name", "figure", "what"} <= names <= {"name", "figure", "what", "script", "details"} for names in given
    )


def test_a_variant_has_the_goal_of_what_it_varies_and_a_stranger_is_refused() -> None:
    """`train_step_cuda` is judged like `train_step`."""
    assert goals.goal_of("train_step_cuda") == goals.goal_of("train_step") == goals.Goal(1.0)
    with pytest.raises(LookupError, match="stranger has no goal"):
        goals.goal_of("stranger")


def test_the_scripts_page_tells_the_goals_that_they_have() -> None:
    """`benchmarks/README.md`, row by row; a row without a name belongs to the script above it."""
    script, told = "", dict[str, set[float]]()
    for line in (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(("| `", "| |")):
            name, *_, goal = (cell.strip() for cell in line.strip("|").split("|"))
            script = name.strip("`").removesuffix(".py") or script
            told[script] = told.get(script, set()) | numbers(goal)

    assert told == {path.stem: targets(path.stem) for path in SCRIPTS}


def test_the_page_tells_no_goal_that_there_is_not() -> None:
    """The table of what each benchmark is has words of its own for them."""
    page = table.PAGE.read_text(encoding="utf-8").partition("## Results")[0]
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")][1:]

    assert set[float]().union(*(numbers(row[-1]) for row in rows)) == set[float]().union(
        *(targets(path.stem) for path in SCRIPTS)
    )
