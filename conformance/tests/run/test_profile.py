"""The profile of a run and the pinned inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from areal_conformance import inventory as inventories
from areal_conformance.check import Check, Level
from areal_conformance.checks import all_checks
from areal_conformance.inventory import Inventory, differences, pin, read_inventory, renewed, to_json
from areal_conformance.run.profile import Profile, make_profile


def pinned(*checks: Check) -> Inventory:
    """Return the inventory of some checks."""
    return Inventory(checks={check.id: pin(check) for check in checks})


def profile(*checks: Check, inventory: Inventory | None = None, level: int = 4, ranks: int = 1) -> Profile:
    """Return the profile of the role workflow."""
    return make_profile("workflow", checks, inventory or pinned(*checks), level=level, ranks=ranks)


def test_the_inventory_is_in_step() -> None:
    """What is pinned is what there is: python -m areal_conformance.inventory --write."""
    assert differences(read_inventory(), all_checks()) == []


def test_level_and_ranks_bound_the_profile(make: Any) -> None:
    """What is outside is counted by what it needs."""
    inside = make("a.inside")
    deep, wide = make("a.deep", level=Level.FAULTS), make("a.wide", ranks=2)
    found = profile(inside, deep, wide, level=2)

    assert (inside,) == found.checks
    assert found.left_out == {"--level 4": 1, "--ranks 2": 1}
    assert {inside.id, wide.id} == {row.id for row in profile(inside, deep, wide, level=2, ranks=2).rows}


def test_a_pinned_check_that_is_gone_is_missing(make: Any) -> None:
    """The profile keeps its row, so that the verdict is incomplete."""
    here, gone = make("a.here"), make("a.gone")
    found = profile(here, inventory=pinned(here, gone))

    assert [(row.id, row.missing) for row in found.rows] == [("workflow.a.gone", True), ("workflow.a.here", True)]


def test_a_gone_check_of_another_role_or_level_is_not_missed(make: Any) -> None:
    """The profile is of one role."""
    here, deep = make("a.here"), make("a.deep", level=Level.FAULTS)
    inventory = pinned(here, deep)
    inventory.checks["train.a.gone"] = pin(here).__class__(role="train", level=1, tier="core")

    assert [row.id for row in profile(here, inventory=inventory, level=1).rows] == ["workflow.a.here"]


def test_a_check_that_is_not_pinned_counts_and_is_noted(make: Any) -> None:
    """It cannot be quietly left out either."""
    new = make("a.new")
    found = profile(new, inventory=Inventory())

    assert (new,) == found.checks
    assert found.notes == ("not pinned in the inventory: workflow.a.new",)


def test_a_check_of_a_newer_contract_is_not_in_the_profile(make: Any) -> None:
    """This core does not speak it yet."""
    new = make("a.new", since=(9, 0))

    assert profile(new).rows == ()


def test_differences_name_new_gone_changed_and_retired(make: Any) -> None:
    """One sentence each."""
    same, new, gone, old = make("a.same"), make("a.new"), make("a.gone"), make("a.old")
    moved = make("a.moved", level=Level.LOOP)
    inventory = Inventory(checks=pinned(same, gone, make("a.moved")).checks, retired=(old.id,))
    told = differences(inventory, {check.id: check for check in (same, new, moved, old)})

    assert len(told) == 5, told
    assert f"{old.id} is a retired id: choose another" in told
    assert f"{gone.id} is pinned and gone" in told
    assert f"{new.id} is new" in told


def test_a_vanished_check_must_be_named(make: Any) -> None:
    """Retired it stays forever; forgotten it was never released."""
    gone = make("a.gone")

    with pytest.raises(ValueError, match=r"pinned and gone: workflow\.a\.gone"):
        renewed(pinned(gone), {})
    retired = renewed(pinned(gone), {}, retire=[gone.id])
    assert (gone.id,) == retired.retired
    assert Inventory() == renewed(pinned(gone), {}, forget=[gone.id])
    with pytest.raises(ValueError, match="never used again"):
        renewed(retired, {gone.id: gone})


def test_the_file_comes_back_as_written(make: Any, tmp_path: Path) -> None:
    """One line a check."""
    before = Inventory(checks=pinned(make("a.one"), make("b.two", level=Level.FAULTS)).checks, retired=("train.x",))
    path = tmp_path / "inventory.json"
    path.write_text(to_json(before), encoding="utf-8")

    assert before == read_inventory(path)
    assert sum("a.one" in line for line in path.read_text(encoding="utf-8").splitlines()) == 1


def test_write_pins_what_is_there(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--write` makes the two the same."""
    path = tmp_path / "inventory.json"
    path.write_text(to_json(Inventory()), encoding="utf-8")
    monkeypatch.setattr(inventories, "PATH", path)
    monkeypatch.setattr(inventories, "read_inventory", lambda: Inventory())

    assert inventories.main(["--write"]) == 0
    assert differences(read_inventory(path), all_checks()) == []
