"""The page of the machine's sample is what the tool makes of the reports that are committed beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tools import mutation

SAMPLE = mutation.ROOT / "docs/conformance/mutation"


def pages(out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the page that `--table` writes of the reports in a folder."""
    monkeypatch.setattr("sys.argv", ["mutation.py", "--table", "--out", str(out)])
    assert mutation.main() == 0
    return (out / "index.md").read_text(encoding="utf-8")


def test_the_page_is_of_the_reports_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python tools/mutation.py --table` was run after the last report, and after the last survivor was judged."""
    shutil.copytree(SAMPLE, tmp_path / "sample")

    assert pages(tmp_path / "sample", monkeypatch) == (SAMPLE / "index.md").read_text(encoding="utf-8")


def test_what_died_when_it_was_tried_again_counts_beside_what_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later trial of some survivors leaves what became of the others at an earlier one."""
    name = "workflow-multi_turn"
    drawn = json.loads((SAMPLE / name / "mutation.json").read_text())
    living = [row for row in drawn["rows"] if row["trial"]["fate"] != "killed"]
    for folder, rows in {name: drawn["rows"], f"{name}-again": living[:1], f"{name}-again-2": living[1:2]}.items():
        (tmp_path / folder).mkdir()
        again = [{**row, "trial": {**row["trial"], "fate": "killed"}} for row in rows]
        made = {**drawn, "rows": rows if folder == name else again}
        (tmp_path / folder / "mutation.json").write_text(json.dumps(made))

    found = mutation._found(name, tmp_path)

    assert found.score(since=True).killed == found.score().killed + 2 == len(drawn["rows"]) - len(living) + 2


def test_a_part_that_cannot_be_tried_fails_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is not there is no sample of which everything died."""
    monkeypatch.setattr(mutation, "SUBJECTS", {"absent": (1, "--backend nowhere --role transport")})
    monkeypatch.setattr("sys.argv", ["mutation.py", "--out", str(tmp_path), "--jobs", "1"])

    assert mutation.main() == 1
