"""Families: rules of one shape, each a check of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from areal_conformance.check import Level, Row, Tier, family
from areal_conformance.checks import all_checks


def test_each_case_is_a_check_of_its_own() -> None:
    """Id, claims and title name the case; the body is given it."""
    seen: list[Any] = []

    @family(
        "train.f.{axis}", {"tensor": 1, "data": 2}, level=Level.SINGLE, law=8, spec="s", unless=("parallel.{axis}",)
    )
    def refused(bench: str, case: int) -> None:
        """Without {axis} parallelism it is refused."""
        seen.append((bench, case))

    for one in refused:
        one.body("bench")

    assert seen == [("bench", 1), ("bench", 2)]
    assert [one.id for one in refused] == ["train.f.tensor", "train.f.data"]
    assert refused[1].title == "Without data parallelism it is refused."
    assert (refused[1].unless, refused[1].tier, refused[1].is_async) == (("parallel.data",), Tier.EXTENDED, False)


def test_a_row_has_a_title_and_facts_of_its_own() -> None:
    """A whole title, or the words for `{...}` in the family's; the case is the name where none is given."""
    seen: list[Any] = []

    @family(
        "train.f.{call}", {"send": Row("a send", law=7), "step": Row("a step", 3)}, level=Level.SINGLE, law=8, spec="s"
    )
    def killed(_bench: str, case: object) -> None:
        """A rank killed in {...} is missed by {call}."""
        seen.append(case)

    @family("train.g.{call}", {"send": Row("A title.", spec="t#{call}")}, level=Level.SINGLE, law=8, spec="s")
    def whole(_bench: str, _case: object) -> None:
        """Not this one."""

    for one in killed:
        one.body("bench")

    assert seen == ["send", 3]
    assert [one.title for one in (*killed, *whole)] == [
        "A rank killed in a send is missed by send.",
        "A rank killed in a step is missed by step.",
        "A title.",
    ]
    assert [one.law for one in killed] == [7, 8]
    assert whole[0].spec == "t#send"


def test_a_family_of_coroutines_is_waited_for() -> None:
    """As a single check is."""

    @family("infer.f.{word}", {"a": 1}, level=Level.SINGLE, law=8, spec="s")
    async def slow(_bench: Any, case: int) -> None:
        """Of {word}."""
        raise ValueError(case)

    (one,) = slow

    assert one.is_async
    with pytest.raises(ValueError, match="1"):
        asyncio.run(one.body(None))


def test_members_are_found_where_they_are_made() -> None:
    """Collected once, from the module of the family."""
    axes = ("tensor", "context", "pipeline", "expert", "data")
    found = [all_checks()[f"train.ranks.refuse.{axis}"] for axis in axes]

    assert {one.body.__module__.rpartition(".")[2] for one in found} == {"ranks_layouts"}
