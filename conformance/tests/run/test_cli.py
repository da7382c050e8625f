"""The sub-commands that only read: list, explain, suggest, compare."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from areal_conformance.checks import all_checks
from areal_conformance.cli.app import app
from areal_conformance.cli.listing import explained
from areal_conformance.cli.run import run
from areal_conformance.report.seal import sealed
from areal_conformance.run.record import Record, Row, Subject, write_text
from areal_core.cli.main import main


def test_help_names_the_sub_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """An App as the target of a hook's command works like a function."""
    assert main(["conformance", "--help"]) == 0

    shown = capsys.readouterr().out
    for word in ("run", "list", "explain", "compare", "ledger", "self-test"):
        assert word in shown


def test_areal_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Through the hook."""
    assert main(["--help"]) == 0
    assert "conformance" in capsys.readouterr().out


def test_list_gives_every_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Narrowed by role and level."""
    assert main(["conformance", "list", "--role", "static", "--level", "0", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found
    assert {one["role"] for one in found} == {"static"}
    assert {"id", "title", "law", "spec", "requires", "unless", "ranks", "since"} <= found[0].keys()


def test_list_of_an_unknown_role_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """With the roles there are."""
    assert main(["conformance", "list", "--role", "trian"]) == 2
    assert "roles are static, train" in capsys.readouterr().err


def test_list_of_an_unknown_level_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """Not an empty table."""
    assert main(["conformance", "list", "--level", "9"]) == 2
    assert "levels are 0 to 5" in capsys.readouterr().err


def test_list_into_a_pipe_has_one_line_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    """For grep."""
    assert main(["conformance", "list", "--role", "static"]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("static.signature.methods")]
    assert len(lines) == 1
    assert lines[0].rstrip().endswith("takes the contract's arguments.")


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "page",
    [
        "docs/tutorial/certify-a-backend.md",
        "conformance/README.md",
        "conformance/src/areal_conformance/adapter.py",
    ],
)
def test_a_check_that_the_documentation_names_is_there(page: str) -> None:
    """What a reader copies must not be refused."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"conformance explain ([a-z_.]+\.[a-z_.]+)|\"([a-z_.]+)\": Tolerance\(", text)

    assert named
    assert [one or other for one, other in named if (one or other) not in all_checks()] == []


def test_the_readme_names_every_command_and_every_option_of_run() -> None:
    """What nobody is told of, nobody finds."""
    text = (ROOT / "conformance/README.md").read_text(encoding="utf-8")
    commands = [name for name in app if not name.startswith("-")]
    options = {"imports": "import"}
    flags = [options.get(name, name).replace("_", "-") for name in inspect.signature(run).parameters]

    assert [name for name in commands if f"areal conformance {name}" not in text] == []
    assert [flag for flag in flags if f"--{flag}" not in text] == []


def test_an_unknown_mutant_is_answered_with_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    """There are hundreds; nobody reads them all."""
    assert main(["conformance", "self-test", "--mutant", "PauseIgnord"]) == 2
    assert "did you mean PauseIgnored" in capsys.readouterr().err


def test_listing_loads_no_engine() -> None:
    """Looking at the suite costs no torch."""
    code = (
        "import sys; from areal_core.cli.main import main; main(['conformance', 'list', '--json']); "
        "sys.exit(', '.join(m for m in ('torch', 'transformers') if m in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ended.stderr.strip() == ""


def test_explain_says_everything(make: Any) -> None:
    """Claim, law, page, level, claims, the rest of the docstring, and what it kills."""

    def body(_bench: object) -> None:
        """Claim of a.one.

        Three tokens are enough to see it.
        """

    check = attrs.evolve(make("a.one", requires=("pause.keep",), ranks=2), body=body)
    shown = explained(check, {"PauseIgnored": "Goes on computing."})

    for words in (
        "Claim of a.one.",
        "law 7: A weight update is all or nothing",
        "docs/contract/workflow.md#run",
        "level 1 (single), tier core, 2 ranks",
        "made where claimed: pause.keep",
        "Three tokens are enough to see it.",
        "PauseIgnored: Goes on computing.",
        "--check workflow.a.one",
    ):
        assert words in shown


def test_explain_of_an_unknown_check_offers_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Ids are exact."""
    assert main(["conformance", "explain", "static.import.lihgt"]) == 2
    assert "did you mean static.import.light" in capsys.readouterr().err


def report(path: Path, *rows: Row) -> str:
    """Write a report and return its path."""
    subject = Subject(role="workflow", name="toy", device="cpu", ranks=1, level=4)
    write_text(path, sealed(Record(suite="1", core="1", contract={}, subject=subject, checks=rows)))
    return str(path)


def test_suggest_prints_entries(tmp_path: Path, row: Callable[..., Row], capsys: pytest.CaptureFixture[str]) -> None:
    """For what failed; and what to remove."""
    rows = (row("a.bad", "fail", message="law 7: x\ngot 3"), row("a.good", "unexpected-pass"), row("a.fine"))
    assert main(["conformance", "ledger", "suggest", report(tmp_path / "report.json", *rows)]) == 0

    shown = capsys.readouterr().out
    assert 'check = "workflow.a.bad"' in shown
    assert 'match = "got 3"' in shown
    assert "# remove the entry of workflow.a.good" in shown
    assert "a.fine" not in shown


def test_suggest_of_a_clean_report_says_so(
    tmp_path: Path, row: Callable[..., Row], capsys: pytest.CaptureFixture[str]
) -> None:
    """No entry is needed."""
    assert main(["conformance", "ledger", "suggest", report(tmp_path / "report.json", row("a.fine"))]) == 0
    assert "nothing failed" in capsys.readouterr().out


def test_compare_exits_with_1_where_something_got_worse(
    tmp_path: Path, row: Callable[..., Row], capsys: pytest.CaptureFixture[str]
) -> None:
    """And with 0 the other way round."""
    good = report(tmp_path / "good.json", row("a.one"))
    bad = report(tmp_path / "bad.json", row("a.one", "fail"))

    assert main(["conformance", "compare", good, bad]) == 1
    assert "worse: workflow.a.one: pass -> fail" in capsys.readouterr().out
    assert main(["conformance", "compare", bad, good]) == 0


def test_a_report_that_is_none_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name."""
    assert main(["conformance", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "a.json cannot be read" in capsys.readouterr().err
