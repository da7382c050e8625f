"""A vendor's day: core, kits, suite and one plugin from wheels, a plugin of their own, and no repository anywhere.

The commands are those of the page `docs/tutorial/certify-a-backend.md`, taken from it. One run makes every check of
levels 0 and 1; those that would make every check of level 4 as well make a few, named here.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .clean import ROOT, Clean, build
from .conftest import Wheels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PAGE = (ROOT / "docs/tutorial/certify-a-backend.md").read_text()
REFERENCE = ROOT / "plugins/areal_reference/src/areal_reference"
RENAMED = {
    "areal_reference.train.": "areal_mine.",
    "ReferenceTrainEngine": "MineTrainEngine",
    "ReferenceTrainConfig": "MineConfig",
    'name="reference"': 'name="mine"',
    "TRAIN = Manifest": "MANIFEST = Manifest",
    "ADAPTER = Adapter(": "ADAPTER = Adapter(\n    patience=3.0,",  # the machine may be busy
}
"""What a vendor who begins with the tutorial's engine changes in its files."""

BROKEN = ("temperature=spec.temperature", "temperature=1.0")
FINDS_IT = "train.forward.temperature"
SEVERAL_RANKS = ("train.ranks.refuse.tensor", "train.ranks.layout_error")
FAULT = "train.send.raising_sink"
OF_A_PAIR = ("pair.update.changes_policy", "pair.fault.sender")

SUCCESS, FAILURE, INCOMPLETE = 0, 1, 4
"""Exit codes of a run."""


@pytest.fixture(scope="module")
def vendor(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clean]:
    """Yield an environment that has nothing of ours yet, and no torch."""
    folder = tmp_path_factory.mktemp("vendor")
    (folder / "dist").symlink_to(next(iter(wheels.values())).parent)
    yield Clean.make(folder, without=("torch", "functorch"))


def commands(step: int) -> list[list[str]]:
    """Return the commands of a step of the page, as words."""
    (section,) = re.findall(rf"^## {step}\. .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def follow(
    vendor: Clean, command: list[str], *narrowed: str, expected: int = SUCCESS
) -> subprocess.CompletedProcess[str]:
    """Run a command of the page, with words that make it shorter."""
    program, *words = command
    launch = ("python", "-m", "pytest") if program == "pytest" else (program,)
    return vendor.run(*launch, *words, *narrowed, expected=expected, timeout=1000)


def install(vendor: Clean, command: list[str]) -> None:
    """Run a `pip install` of the page: ours come from the wheels, with all they depend on."""
    assert command[:2] == ["pip", "install"]
    vendor.pip("install", "--find-links", "dist", "--no-build-isolation", *command[2:])


def ours(vendor: Clean) -> set[str]:
    """Return the distributions of ours that are installed, and the vendor's."""
    code = "from importlib.metadata import distributions as d; print(*{x.name for x in d() if 'areal' in x.name})"
    return set(vendor.run("python", "-c", code).stdout.split())


def outcomes(report: Path) -> dict[str, str]:
    """Return check -> how it ended, of those that were made."""
    checks = json.loads((report / "report.json").read_text())["checks"]
    return {check["id"]: check["outcome"] for check in checks if check["outcome"] != "not-run"}


def install_wheel(vendor: Clean) -> None:
    """Build the plugin's wheel against the wheels of ours, and install it in place of an earlier one."""
    folder = vendor.folder / "wheel"
    folder.mkdir(exist_ok=True)
    build([vendor.folder / "areal_mine"], folder)
    (wheel,) = folder.glob("*.whl")
    vendor.install(wheel, replace=True)


def test_a_new_backend_passes_the_static_checks_at_once(vendor: Clean) -> None:
    """Step 1: the suite brings what it needs; what `areal new` writes is installed, listed and sound without torch."""
    suite, new, editable, listing, static = commands(1)

    install(vendor, suite)
    follow(vendor, new)
    install(vendor, editable)
    listed = follow(vendor, listing).stdout
    follow(vendor, static)

    assert "areal-mine 0.1.0" in listed
    assert ours(vendor) == {
        *("areal-core", "areal-config", "areal-devices", "areal-agentic", "areal-worker"),
        *("areal-conformance", "areal-local", "areal-mine"),
    }
    vendor.run("python", "-c", "import torch", expected=1)


def test_an_engine_built_against_the_wheels_is_certified(vendor: Clean) -> None:
    """Steps 2 and 3: it names devices of other machines, and meets levels 0 and 1, some of ranks, faults and a pair."""
    engine, level_1, explain, listing, other_side, ranks, pair = commands(2)
    package = vendor.folder / "areal_mine/src/areal_mine"
    for name in ("engine.py", "config.py", "conformance.py"):
        (package / name).write_text(_renamed(REFERENCE / "train" / name))
    (package / "manifest.py").write_text(_renamed(REFERENCE / "manifest.py").partition("\nINFER = ")[0])

    vendor.link()
    install(vendor, engine)
    install_wheel(vendor)
    whole = follow(vendor, level_1).stdout
    told = follow(vendor, explain).stdout
    listed = follow(vendor, listing).stdout
    install(vendor, other_side)
    several = follow(vendor, ranks, "--check", *SEVERAL_RANKS, FAULT, expected=INCOMPLETE).stdout
    both = follow(vendor, pair, "--check", *OF_A_PAIR, expected=INCOMPLETE).stdout

    assert 'devices=("cpu", "cuda", "npu")' in (package / "manifest.py").read_text()
    assert "verdict: success" in whole and " 0 missing" in whole
    assert "areal-conformance-proof, not installed here" in told and "Loss, gradient norm" in told
    assert "train.step.gradient " in listed
    assert "3 ran: 3 pass" in several and "2 ran: 2 pass" in both
    assert ours(vendor) - {"areal-mine"} == {
        *("areal-core", "areal-devices", "areal-algorithms", "areal-torch", "areal-serving", "areal-agentic"),
        *("areal-worker", "areal-config", "areal-conformance", "areal-local", "areal-reference"),
    }


def test_a_failure_is_reported_accepted_and_compared(vendor: Clean) -> None:
    """Step 4: a wrong engine fails by name, its entry in the ledger is proposed, and the next report tells of it."""
    report, suggest, again, compare = commands(4)
    package = vendor.folder / "areal_mine/src/areal_mine"
    whole = (package / "engine.py").read_text()
    assert BROKEN[0] in whole
    (package / "engine.py").write_text(whole.replace(*BROKEN))

    install_wheel(vendor)
    narrowed = ("--check", FINDS_IT, FAULT)
    follow(vendor, report, *narrowed, expected=FAILURE)
    proposed = follow(vendor, suggest).stdout
    entry = proposed.replace('reason = ""', 'reason = "next week"').replace('issue = ""', 'issue = "mine#1"')
    (package / "conformance.toml").write_text(entry)
    install_wheel(vendor)
    follow(vendor, again, *narrowed, expected=INCOMPLETE)
    compared = follow(vendor, compare).stdout
    (package / "engine.py").write_text(whole)
    (package / "conformance.toml").write_text("")
    install_wheel(vendor)

    assert proposed.count("[[known]]") == 1 and f'check = "{FINDS_IT}"' in proposed
    assert outcomes(vendor.folder / "out") == {FINDS_IT: "fail", FAULT: "pass"}
    assert outcomes(vendor.folder / "new") == {FINDS_IT: "known-fail", FAULT: "pass"}
    assert FINDS_IT in compared and FAULT not in compared
    assert {path.name for path in (vendor.folder / "new").iterdir()} == {"report.json", "report.md", "report.html"}


def test_plain_pytest_does_the_same(vendor: Clean) -> None:
    """Step 5: under no configuration; the suite's pytest plugin comes with the wheel."""
    (command,) = commands(5)

    narrowed = ("-k", f"static.manifest or {FINDS_IT}", "-q", "-p", "no:cacheprovider")
    done = follow(vendor, command, *narrowed, expected=FAILURE)

    assert "3 ran: 3 pass;" in done.stdout and "verdict: incomplete" in done.stdout, done.stdout
    assert re.search(r"\b3 passed", done.stdout), done.stdout


def _renamed(path: Path) -> str:
    """Return a file of the tutorial's engine as one of `areal_mine`."""
    text = path.read_text()
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    return text
