"""`areal backends` shows everything installed, also what cannot be used, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.benches.command import Run

from areal_conformance.probes.distributions import manifest_source, write_distribution

CLAIMS = """{
    "parallel.data": full(),
    "lora": when("device == cuda", "needs a kernel"),
    "packing": not_yet("soon", "issues/7"),
    "parallel.pipeline": unsupported("no schedule"),
}"""


@pytest.fixture
def plugins(site: Path) -> None:
    """Install a good backend, one without its engine, a broken one, one of the future, and a clash."""
    for name, source in {
        "good": manifest_source("train", "good", claims=CLAIMS, summary="A good one.", devices=("cpu", "cuda")),
        "hollow": manifest_source("train", "hollow", requires=("absent-engine>=2",), extra="engine"),
        "broken": "raise RuntimeError('boom')",
        "future": manifest_source("train", "future", contract=(9, 0)),
    }.items():
        module = f"areal_{name}"
        entry_points = {"areal.train": {name: f"{module}:MANIFEST"}}
        write_distribution(site, f"areal-{name}", entry_points=entry_points, modules={module: source})
    for distribution in ("clash-one", "clash-two"):
        write_distribution(site, distribution, entry_points={"areal.train": {"clash": "areal_good:MANIFEST"}})


@pytest.mark.usefixtures("plugins")
def test_every_plugin_is_a_row_with_its_state(areal: Run) -> None:
    """The table shows usable, hollow, broken, foreign and clashing plugins side by side."""
    done = areal("backends", "--role", "train")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}

    assert (done.returncode, done.stderr) == (0, "")
    assert "areal-good" in rows["good"] and "2 of 4" in rows["good"]
    assert rows["good"].rstrip().endswith("ok")
    assert rows["hollow"].rstrip().endswith("no engine")
    assert rows["broken"].rstrip().endswith("broken")
    assert rows["future"].rstrip().endswith("contract mismatch")
    assert rows["clash"].rstrip().endswith("registered twice")


@pytest.mark.usefixtures("plugins")
def test_the_fixes_stand_below_the_table(areal: Run) -> None:
    """A table has no room for commands and reasons."""
    text = areal("backends", "--role", "train").stdout

    assert "train hollow: missing: absent-engine>=2\n    pip install 'areal-hollow[engine]'" in text
    assert "RuntimeError: boom" in text
    assert "areal-future 1.0 speaks train contract 9.0" in text
    assert "by clash-one 1.0 and by clash-two 1.0" in text or "by clash-two 1.0 and by clash-one 1.0" in text


def test_everything_installed_fits_a_terminal(areal: Run) -> None:
    """80 columns, each name once under its role, no engine that proves the conformance suite."""
    text = areal("backends", COLUMNS="80").stdout
    table = text.partition("\n\n")[0].splitlines()

    assert max(map(len, table)) <= 80
    assert [line.strip() for line in table].count("train") == 1
    assert any(line.startswith("  fsdp ") for line in table)
    assert not any(line.startswith("  second ") for line in table)


def test_the_options_of_a_backend_are_told(areal: Run) -> None:
    """With type, default and meaning, as `areal config` has them."""
    text = areal("backends", "disk").stdout

    assert "options" in text and "bucket_bytes" in text and "67108864" in text and "integer" in text
    assert "Bytes that travel as" in text


@pytest.mark.usefixtures("plugins")
def test_json_holds_the_same(areal: Run) -> None:
    """Machines read every claim, probe and error."""
    rows = {row["name"]: row for row in json.loads(areal("backends", "--json", "--role", "train").stdout)}

    assert rows["good"]["claims"]["lora"] == {
        "support": "when",
        "why": "needs a kernel",
        "when": "device == cuda",
        "issue": "",
    }
    assert rows["good"]["probe"]["ok"] is True
    assert rows["hollow"]["probe"]["missing"] == ["absent-engine>=2"]
    assert rows["broken"]["error"]["code"] == "AREAL-E103"
    assert rows["future"]["error"]["kind"] == "ContractMismatch"
    assert rows["clash"]["error"]["code"] == "AREAL-E105"


@pytest.mark.usefixtures("plugins")
def test_one_backend_is_shown_with_every_reason(areal: Run) -> None:
    """`areal backends NAME` answers why something is refused."""
    text = areal("backends", "good").stdout
    words = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.strip()}

    assert "A good one." in text
    assert words["parallel.data"] == "parallel.data yes"
    assert words["lora"] == "lora when device == cuda: needs a kernel"
    assert words["packing"] == "packing not yet soon: issues/7"
    assert words["parallel.pipeline"] == "parallel.pipeline no no schedule"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lokal"], "did you mean 'local'?"),
        (["slurm"], "areal backends"),
        (["--role", "trian"], "did you mean 'train'?"),
    ],
)
def test_an_unknown_name_or_role_is_answered(areal: Run, words: list[str], said: str) -> None:
    """The near name and the pip command come with exit code 1."""
    done = areal("backends", *words)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"  fix: {said}\n" in done.stderr


@pytest.mark.usefixtures("plugins")
def test_what_is_narrowed_away_is_said(areal: Run) -> None:
    """A forgotten AREAL_PLUGINS explains the missing row."""
    text = areal("backends", "--role", "train", AREAL_PLUGINS="good").stdout

    assert "left out by AREAL_PLUGINS:" in text and "hollow" in text
    assert "missing: absent-engine>=2" not in text
