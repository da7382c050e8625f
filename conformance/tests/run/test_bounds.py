"""Bounds of figures that whoever makes a run sets: read strictly, held in the place of the adapter's, and reported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_conformance.adapter import Adapter, Promise
from areal_conformance.check import Level
from areal_conformance.cli.child import arguments_of
from areal_conformance.cli.listing import explained
from areal_conformance.report.markdown import markdown
from areal_conformance.report.schema import schema
from areal_conformance.run.asked import Asked
from areal_conformance.run.bounds import bounds_told, figures_of, read_bounds
from areal_conformance.run.plan import Plan, make_plan
from areal_conformance.run.record import Bound, Row
from areal_conformance.run.refusals import refuse_adapter
from areal_conformance.target import Locator, Target
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import Registry

FIGURES = ("step of a plain loop / step", "peak, MB")
TIGHT = '["step of a plain loop / step"]\nat_least = 0.9\n'


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a file of bounds."""

    def write(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def plan(make: Any, offer: Any) -> Callable[..., Plan]:
    """Return a function that plans a run of a suite with one check of figures. Any: fields of Asked."""
    suite = offer(make("a.one"), make("a.numbers", level=Level.NUMBERS, figures=FIGURES))

    def planned(**given: Any) -> Plan:
        asked = Asked(backend="toy", role="workflow", **{"level": 5, **given})
        return make_plan(asked, suite, now=datetime(2026, 1, 1), command="c")

    return planned


def test_bounds_of_a_run_are_what_its_figures_are_held_to(
    plan: Callable[..., Plan], written: Callable[[str], Path]
) -> None:
    """And the report says so, with the file's name."""
    made = plan(bounds=str(written(TIGHT + '["peak, MB"]\nat_least = 1\nat_most = 400\n')))

    assert made.target.adapter.promises == {
        FIGURES[0]: Promise(at_least=0.9),
        FIGURES[1]: Promise(at_least=1, at_most=400),
    }
    assert made.record.bounds == (
        Bound(figure=FIGURES[1], at_least=1, at_most=400, by="mine.toml"),
        Bound(figure=FIGURES[0], at_least=0.9, at_most=None, by="mine.toml"),
    )
    assert plan().record.bounds == ()


def test_a_bound_takes_the_place_of_the_adapters_promise() -> None:
    """It may be looser: another machine. What the file does not name stays promised, and the report says by whom."""
    promises = {FIGURES[0]: Promise(at_least=0.5), FIGURES[1]: Promise(at_most=300)}
    target = Target(locator=Locator(role="train", name="toy"), registry=Registry(), adapter=Adapter(promises=promises))

    assert bounds_told(target, {FIGURES[0]: promises[FIGURES[0]]}, "/tmp/a/mine.toml") == (
        Bound(figure=FIGURES[1], at_least=None, at_most=300, by="the adapter"),
        Bound(figure=FIGURES[0], at_least=0.5, at_most=None, by="mine.toml"),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('["step of a plain lop / step"]\nat_least = 1', "did you mean 'step of a plain loop / step'?"),
        (
            "speed = 3",
            "speed: no such figure is told of this backend\n       speed: is no table of at_least and at_most",
        ),
        (TIGHT + "at_lest = 1", "step of a plain loop / step: unknown field at_lest; there are at_least, at_most"),
        ('["peak, MB"]', "peak, MB: has neither at_least nor at_most"),
        ('["peak, MB"]\nat_most = "400"', "at_most is '400', which is no finite number"),
        ('["peak, MB"]\nat_most = inf', "at_most is inf, which is no finite number"),
        ('["peak, MB"]\nat_most = true', "at_most is True, which is no finite number"),
        ('["peak, MB"]\nat_least = 2\nat_most = 1', "at_least 2 is above at_most 1: nothing is within"),
        ("", "it holds no figure"),
        ("[", "are no toml"),
    ],
)
def test_a_file_that_would_bound_nothing_is_refused(written: Callable[[str], Path], text: str, told: str) -> None:
    """By the figure and what is wrong with it, and with an example."""
    with pytest.raises(ConfigError) as caught:
        read_bounds(written(text), FIGURES)

    assert told in str(caught.value)
    assert "at_least = 0.9" in caught.value.fix


def test_bounds_without_figures_are_refused(
    plan: Callable[..., Plan], written: Callable[[str], Path], make: Any, offer: Any, tmp_path: Path
) -> None:
    """At a level that measures nothing, of a role that has no figures, from a file that is not there."""
    path = str(written(TIGHT))
    with pytest.raises(ConfigError, match="figures are told at level 5, not at 4") as caught:
        plan(bounds=path, level=4)
    assert caught.value.fix == "--level 5"
    with pytest.raises(ConfigError, match="cannot be read"):
        plan(bounds=str(tmp_path / "none.toml"))
    asked = Asked(backend="toy", role="workflow", bounds=path, level=5)
    with pytest.raises(ConfigError, match="none of workflow"):
        make_plan(asked, offer(make("a.one")), now=datetime(2026, 1, 1), command="c")


def test_a_promise_of_no_figure_is_refused() -> None:
    """It would hold nothing, and nobody would notice."""
    adapter = Adapter(promises={"peak": Promise(at_most=1)})
    target = Target(locator=Locator(role="train", name="toy"), registry=Registry(), adapter=adapter)

    with pytest.raises(ConfigError, match="promises: no check tells 'peak'; did you mean 'peak, MB'"):
        refuse_adapter(target, (), FIGURES)


def test_figures_of_each_dtype_can_be_bound(make: Any) -> None:
    """By the names that stand in the report, which `explain` lists."""
    check = make("a.numbers", level=Level.NUMBERS, figures=("gap in {dtype}", "seconds"))
    target = Target(
        locator=Locator(role="workflow", name="toy"),
        registry=Registry(),
        adapter=Adapter(dtypes=("float32", "bfloat16")),
    )

    assert figures_of([make("a.one"), check], target) == ("gap in float32", "gap in bfloat16", "seconds")
    assert "\n  gap in {dtype}\n  seconds\n" in explained(check, None)


def test_bounds_reach_the_process_that_makes_the_checks() -> None:
    """As an option of pytest."""
    assert "--areal-bounds=/b.toml" in arguments_of(Asked(backend="x", bounds="/b.toml"), "areal ...")


def test_a_report_shows_a_figure_beside_its_bounds(plan: Callable[..., Plan], row: Callable[..., Row]) -> None:
    """With whose they are."""
    figures = row("a.numbers", level=5, numbers={FIGURES[0]: 0.95, FIGURES[1]: 380.0})
    bounds = (Bound(figure=FIGURES[0], at_least=0.9, at_most=2.0, by="mine.toml"),)
    shown = markdown(attrs.evolve(plan().record, checks=(figures,), bounds=bounds))

    assert f"| {FIGURES[0]} | 0.95 | 0.9 or more and 2 or less (mine.toml) |" in shown
    assert f"| {FIGURES[1]} | 380 |  |" in shown
    assert schema()["$defs"]["Bound"]["properties"]["at_most"] == {"anyOf": [{"type": "number"}, {"type": "null"}]}
