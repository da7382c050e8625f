"""Which checks of a profile are made: ids, patterns, those of an older contract, and what failed the last time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_conformance.report.seal import sealed
from areal_conformance.run.asked import Asked, locator_of
from areal_conformance.run.plan import Plan, closed, make_plan
from areal_conformance.run.suite import Suite
from areal_core.contract.errors import ConfigError

Offered = Callable[..., Plan]


@pytest.fixture
def planned(make: Any, offer: Any) -> Offered:
    """Return a function that plans a run over four checks of one area and one of another."""
    suite: Suite = offer(
        make("area.one"),
        make("area.two"),
        make("area.late", since=(1, 2)),
        make("other.one"),
        make("area.deep", level=4),
    )

    def plan(**asked: Any) -> Plan:
        given = {"backend": "toy", "role": "workflow", "level": 2, **asked}
        return make_plan(Asked(**given), suite, now=datetime(2026, 1, 1), command="c")

    return plan


def made(plan: Plan) -> list[str]:
    """Return the checks of a plan, without their role."""
    return [check.id.removeprefix("workflow.") for check in plan.checks]


def test_a_pattern_takes_all_that_match(planned: Offered) -> None:
    """In the order of the profile, each once; the profile stays whole."""
    plan = planned(only=("workflow.*.one", "workflow.area.o*", "workflow.area.two"))

    assert made(plan) == ["area.one", "area.two", "other.one"]
    assert len(plan.record.checks) == 4


def test_a_pattern_that_matches_nothing_is_refused(planned: Offered) -> None:
    """One that matches outside the profile says what the run would need."""
    with pytest.raises(ConfigError, match=r"'workflow.nothing.\*' is not a check of this run"):
        planned(only=("workflow.nothing.*",))
    with pytest.raises(ConfigError, match="--level 4 --ranks 1"):
        planned(only=("workflow.area.d*",))


def test_an_older_contract_leaves_out_what_came_later(planned: Offered) -> None:
    """Counted on line one, and the report says which contract it is about."""
    plan = planned(contract="1.1")

    assert made(plan) == ["area.one", "area.two", "other.one"]
    assert plan.record.left_out == {"--contract 1.2": 1, "--level 4": 1}
    assert plan.record.contract["workflow"] == "1.1"
    assert made(planned(contract="1.2")) == ["area.late", "area.one", "area.two", "other.one"]


@pytest.mark.parametrize("version", ["2.0", "1.99", "one", "1", "1.2.3"])
def test_a_contract_that_this_core_does_not_speak_is_refused(planned: Offered, version: str) -> None:
    """With what it speaks."""
    with pytest.raises(ConfigError, match=r"this core speaks 1\.3 and older minors of 1"):
        planned(contract=version)


def test_only_what_failed_in_a_report_is_made(planned: Offered, tmp_path: Path, row: Any) -> None:
    """Failures, errors, stale entries of a ledger and what was inconclusive; neither passes nor what never ran."""
    before = planned().record
    ends = {"area.one": "fail", "area.two": "inconclusive", "area.late": "pass"}
    (tmp_path / "report.json").write_text(sealed(closed(before, [row(name, how) for name, how in ends.items()], 1.0)))

    assert made(planned(failed_in=str(tmp_path))) == ["area.one", "area.two"]


def test_a_report_in_which_nothing_failed_is_refused(planned: Offered, tmp_path: Path, row: Any) -> None:
    """As is one on something else: neither says what to make."""
    rows = [row(name) for name in ("area.one", "area.two", "area.late", "other.one")]
    record = closed(planned().record, rows, 1.0)
    (tmp_path / "report.json").write_text(sealed(record))
    with pytest.raises(ConfigError, match=r"no check failed in .*\n.*its verdict is success"):
        planned(failed_in=str(tmp_path))

    other = attrs.evolve(record, subject=attrs.evolve(record.subject, device="cuda"))
    (tmp_path / "report.json").write_text(sealed(other))
    with pytest.raises(ConfigError, match="it is on workflow toy on cuda"):
        planned(failed_in=str(tmp_path))


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), 1e9])
def test_patience_is_a_factor(factor: float) -> None:
    """Zero would fail everything, and what is no number waits for ever."""
    with pytest.raises(ConfigError, match="--patience 4"):
        Asked(backend="toy", patience=factor)


def test_patience_travels_to_other_processes_and_multiplies_that_of_the_adapter() -> None:
    """The locator carries it: the processes of ranks find the same target."""
    from areal_conformance.target import Locator, locate

    locator = locator_of(Asked(backend="local", patience=3.0))
    usual = locate(Locator(role="scheduler", name="local"))

    assert locate(Locator(**attrs.asdict(locator))).adapter.patience == 3.0 * usual.adapter.patience
    pair = locate(Locator(role="pair", name="reference+reference", patience=2.0))
    assert {side.adapter.patience for side in (pair, *pair.parts.values())} == {2.0}
