"""A vendor's day: core, kit, suite and one plugin from wheels, a plugin of their own, and no repository anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .clean import ROOT, Clean, build
from .conftest import Wheels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

REFERENCE = ROOT / "plugins/areal_reference/src/areal_reference"
RENAMED = {
    "areal_reference.train.": "areal_mine.",
    "ReferenceTrainEngine": "MineTrainEngine",
    "ReferenceTrainConfig": "MineConfig",
    'name="reference"': 'name="mine"',
    "TRAIN = Manifest": "MANIFEST = Manifest",
}
"""What a vendor who begins with the tutorial's engine changes in its files."""


@pytest.fixture(scope="module")
def vendor(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clean]:
    """Yield an environment with the suite, the kits and the one plugin that the tutorial pairs with."""
    clean = Clean.make(tmp_path_factory.mktemp("vendor"))
    clean.install(*(wheels[f"areal-{short}"] for short in ("core", "conformance", "torch", "serving", "reference")))
    yield clean


def renamed(path: Path) -> str:
    """Return a file of the tutorial's engine as one of `areal_mine`."""
    text = path.read_text()
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    return text


def verdicts(report: Path) -> dict[str, str]:
    """Return check -> how it ended."""
    return {result["id"]: result["outcome"] for result in json.loads(report.read_text())["results"]}


def test_a_new_backend_passes_the_static_checks_at_once(vendor: Clean) -> None:
    """Step 1 of the page: what `areal new` writes builds as a wheel, is listed, and fails no check of its package."""
    vendor.run("areal", "new", "backend", "mine", "--role", "train")
    _install(vendor)

    listing = vendor.run("areal", "backends", "mine").stdout
    static = vendor.run("areal", "conformance", "run", "--backend", "mine", "--role", "train", "--level", "0")

    assert "areal-mine 0.1.0" in listing
    assert str(ROOT) not in static.stdout


def test_a_plugin_built_against_the_wheels_is_certified(vendor: Clean) -> None:
    """Steps 2 to 4: the engine is written, claimed, checked at level 1, reported, explained and compared."""
    package = vendor.folder / "areal_mine/src/areal_mine"
    for name in ("engine.py", "config.py", "conformance.py"):
        (package / name).write_text(renamed(REFERENCE / "train" / name))
    (package / "manifest.py").write_text(renamed(REFERENCE / "manifest.py").partition("\nINFER = ")[0])
    _install(vendor)

    target = ("--backend", "mine", "--role", "train")
    run = vendor.run("areal", "conformance", "run", *target, "--level", "1", "--report", "out", timeout=1000)
    (report,) = (vendor.folder / "out").rglob("report.json")
    told = vendor.run("areal", "conformance", "explain", "train.step.gradient")
    listed = vendor.run("areal", "conformance", "list", "--role", "train")
    compared = vendor.run("areal", "conformance", "compare", str(report), str(report))
    vendor.run("areal", "conformance", "ledger", "suggest", str(report))

    ended = verdicts(report)
    assert "failed" not in ended.values() and "error" not in ended.values(), run.stdout
    assert sum(outcome == "passed" for outcome in ended.values()) > 50
    assert "train.step.gradient" in told.stdout and "train.step.gradient" in listed.stdout
    assert compared.stdout
    assert {path.suffix for path in report.parent.iterdir()} >= {".json", ".md", ".html"}


def test_plain_pytest_does_the_same(vendor: Clean) -> None:
    """The page's last command, under no configuration: the suite's pytest plugin comes with the wheel."""
    words = ("--areal-backend", "mine", "--areal-role", "train", "--areal-level", "0", "-q", "-p", "no:cacheprovider")
    done = vendor.run("python", "-m", "pytest", "--pyargs", "areal_conformance", *words)

    assert re.search(r"\d+ passed", done.stdout)


def _install(vendor: Clean) -> None:
    """Build the plugin's wheel and install it, in place of an earlier one."""
    folder = vendor.folder / "dist"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    build([vendor.folder / "areal_mine"], folder)
    vendor.install(*folder.glob("*.whl"), replace=True)
