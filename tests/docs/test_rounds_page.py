"""The page of rounds counts the verdicts of every reference, and tells each that is not success."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools import rounds


def reported(folder: Path, verdict: str, outcome: str, seconds: float, *notes: str) -> None:
    """Write what the page reads of a report."""
    folder.mkdir(parents=True)
    check = {"id": "device.copy", "outcome": outcome, "seconds": 0.5, "message": "another byte", "notes": notes}
    report = {
        "verdict": verdict,
        "seconds": seconds,
        "checks": [check],
        "subject": {"level": 3},
        "versions": {"platform": "Linux", "torch": "2.13.0"},
        "started": "2026-11-30T21:49:01",
        "git": "5b60f1a4",
    }
    (folder / "report.json").write_text(json.dumps(report))


def page(out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the page of a folder."""
    monkeypatch.setattr("sys.argv", ["rounds.py", "--out", str(out), "--table", str(out / "page.md")])
    assert rounds.main() == 0
    return (out / "page.md").read_text(encoding="utf-8")


def test_a_false_alarm_stands_on_the_page_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rounds one succeeded: the median and the slowest of both are told, and the check that failed."""
    reported(tmp_path / "round-01/device-cpu", "success", "pass", 4.0)
    reported(tmp_path / "round-02/device-cpu", "fail", "fail", 8.0)

    text = page(tmp_path, monkeypatch)

    assert "| `--backend cpu --role device` | 2 | 1 | 0 | 0 to 1 | 6, 8 |" in text
    assert "- round-02, `device-cpu`: fail\n  fail device.copy 0.5 s: another byte" in text
    assert "round-01" not in text


def test_how_many_of_the_last_succeeded_in_a_row_and_what_was_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that could not tell at first stands there, too, although it passed."""
    for number, verdict in enumerate(("success", "partial", "success", "success"), start=1):
        notes = ("made once more, for at first it could not tell: a pause",) if number == 3 else ("harmless",)
        outcome = "inconclusive" if verdict == "partial" else "pass"
        reported(tmp_path / f"round-0{number}/device-cpu", verdict, outcome, 4.0, *notes)

    text = page(tmp_path, monkeypatch)

    assert "| `--backend cpu --role device` | 4 | 3 | 2 |" in text
    assert "- round-03, `device-cpu`: success\n  pass device.copy 0.5 s: made once more, for at first it could" in text
    assert "round-01" not in text and "round-04" not in text


def test_a_folder_without_rounds_has_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names another folder is told so."""
    with pytest.raises(SystemExit, match="has no report"):
        page(tmp_path, monkeypatch)
