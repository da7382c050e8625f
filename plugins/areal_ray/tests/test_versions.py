"""A host whose areal is another one is told by its name, with what it has and what the controller has."""

from __future__ import annotations

import asyncio

import pytest

from areal_core.contract.errors import ResourceError
from areal_ray.versions import MESSAGES, difference, versions

relay = pytest.importorskip("areal_ray.relay")
codec = pytest.importorskip("areal_worker.codec")


def test_the_same_on_both_sides_is_no_difference() -> None:
    """What is compared is there: versions of packages, and one of what they say to one another."""
    mine = versions()

    assert difference(mine, versions(), "node-b") == ("", "")
    assert set(mine) == {"areal-core", "areal-local", "areal-ray", "areal-worker", MESSAGES}
    assert all(mine.values())


def test_packages_that_differ_are_named_with_both_versions() -> None:
    """One that is not there at all, too; those that are the same are not told."""
    mine = {"areal-core": "1.0", "areal-local": "1.0", "areal-ray": "1.0", MESSAGES: "abc"}
    theirs = {"areal-core": "1.1", "areal-local": "1.0", "areal-ray": "", MESSAGES: "def"}

    why, fix = difference(mine, theirs, "b")

    told = "host b has areal-core 1.1, areal-ray not at all, the controller areal-core 1.0, areal-ray 1.0"
    assert (why, fix) == (told, "install the controller's versions there")


def test_one_version_of_two_commits_is_told_by_its_messages() -> None:
    """As while it is developed."""
    mine = versions()

    why, fix = difference(mine, {**mine, MESSAGES: "other"}, "node-b")

    assert "host node-b has another areal-core" in why and "one commit" in fix


def test_a_relay_of_another_version_starts_nothing() -> None:
    """It does not even read what it is given, which may mean something else in that version."""
    wanted = {**versions(), "areal-ray": "99.0"}

    async def begun() -> object:
        made = relay.Relay()
        answer = await made.begin("actor/0", "10.0.0.2", wanted, b"\x00")
        await made.end(0.0)
        return codec.decode([bytes(answer[0])])

    error = asyncio.run(begun())
    assert isinstance(error, ResourceError)
    assert error.what == "worker actor/0 cannot serve this run"
    assert "(10.0.0.2) has areal-ray" in error.why and "the controller areal-ray 99.0" in error.why
