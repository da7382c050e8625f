"""A rehearsal of contract 2.0: who is left behind is refused before anything is loaded, with both versions named."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_core import __version__
from areal_core.cli.main import main
from areal_core.contract import version
from areal_core.contract.version import CONTRACT, QUIET_MINORS, ageing
from areal_core.plugins import describe, install
from areal_core.plugins.registry import default_registry


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give each test a registry of its own, and a core that lies in no checkout."""
    default_registry.cache_clear()
    monkeypatch.setattr(install, "CHECKOUT", tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


def speak(monkeypatch: pytest.MonkeyPatch, role: str, spoken: tuple[int, int]) -> None:
    """Let this core speak another contract."""
    table = {**CONTRACT, role: spoken}
    monkeypatch.setattr(version, "CONTRACT", table)
    monkeypatch.setattr(describe, "CONTRACT", table)


def plugin(site: Path, contract: tuple[int, int] | tuple[tuple[int, int], ...]) -> None:
    """Install a train backend `toy` written for a contract, or several; its engine must never be imported."""
    write_distribution(
        site,
        "areal-toy",
        version="3.2",
        entry_points={"areal.train": {"toy": "toy_manifest:MANIFEST"}},
        modules={"toy_manifest": manifest_source("train", "toy", contract=contract, factory="toy_engine:Engine")},
    )


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run `areal` in this process and return all it wrote."""
    main(words)
    out, err = capsys.readouterr()
    return out + err


OLD_PLUGIN = (
    "areal-toy 3.2 speaks train contract 1.4",
    f"areal-core {__version__} speaks train contract 2.0",
    "pip install -U areal-toy: a release for train contract 2.0 is needed",
)
OLD_CORE = (
    "areal-toy 3.2 speaks train contract 2.0",
    f"areal-core {__version__} speaks train contract 1.2 and older minors of 1",
    "pip install -U areal-core, or a release of areal-toy for train contract 1.2",
)


@pytest.mark.parametrize("command", ["backends", "one backend", "dry run"])
@pytest.mark.parametrize(
    ("ours", "theirs", "said"), [((2, 0), (1, 4), OLD_PLUGIN), ((1, 2), (2, 0), OLD_CORE)], ids=["plugin", "core"]
)
def test_who_is_left_behind_is_refused_with_both_versions(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    ours: tuple[int, int],
    theirs: tuple[int, int],
    said: tuple[str, str, str],
) -> None:
    """An old plugin under a new core, a new plugin under an old one: listed as a mismatch, and planned by nobody."""
    plugin(site, theirs)
    speak(monkeypatch, "train", ours)
    (site / "run.yaml").write_text("actor: {backend: toy:d1}\n")
    words = {
        "backends": ("backends", "--role", "train"),
        "one backend": ("backends", "toy"),
        "dry run": ("train", str(site / "run.yaml"), "--dry-run"),
    }[command]

    text = told(capsys, *words)

    what, why, fix = said
    assert f"ContractMismatch: {what} [AREAL-E104]\n  why: {why}\n  fix: {fix}\n" in text
    if command == "backends":
        assert "contract mismatch" in text


@pytest.mark.parametrize(("ours", "spoken"), [((1, 4), "1.4"), ((1, 6), "1.4"), ((2, 0), "2.0"), ((2, 1), "2.0")])
def test_one_release_can_be_for_two_majors(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ours: tuple[int, int], spoken: str
) -> None:
    """The release in which a plugin and its users move to the next major: each core drives it by its own contract."""
    plugin(site, ((1, 4), (2, 0)))
    speak(monkeypatch, "train", ours)

    assert "ContractMismatch: areal-toy" not in told(capsys, "backends", "--role", "train")
    assert f"contract {spoken}, devices" in told(capsys, "backends", "toy")


@pytest.mark.parametrize(("ours", "spoken"), [((1, 2), "2.0"), ((3, 0), "2.0")])
def test_a_release_for_two_majors_is_refused_by_a_third(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ours: tuple[int, int], spoken: str
) -> None:
    """By the newest contract it speaks."""
    plugin(site, ((1, 4), (2, 0)))
    speak(monkeypatch, "train", ours)

    assert f"ContractMismatch: areal-toy 3.2 speaks train contract {spoken}" in told(capsys, "backends", "toy")


def test_a_plugin_of_the_same_major_is_driven_however_old(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A minor adds with defaults, so nothing a plugin of an older minor does has changed its meaning."""
    plugin(site, (1, 0))
    speak(monkeypatch, "train", (1, 9))

    assert "ContractMismatch: areal-toy" not in told(capsys, "backends", "--role", "train")


@pytest.mark.parametrize(("behind", "warned"), [(0, False), (QUIET_MINORS, False), (QUIET_MINORS + 1, True)])
def test_a_plugin_far_behind_is_warned_of_with_the_end_in_sight(
    monkeypatch: pytest.MonkeyPatch, behind: int, warned: bool
) -> None:
    """The warning says what both speak and with which contract it ends; a mismatch is refused, not warned of."""
    speak(monkeypatch, "train", (1, 9))
    text = "written for train contract 1.6, this core speaks 1.9; it is driven until contract 2.0"

    assert ageing("train", (1, 9 - behind)) == (text if warned else "")
    assert ageing("train", (2, 0)) == ""
