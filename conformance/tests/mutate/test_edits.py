"""Edits of a person: what is refused before anything runs, which lines one changes, and that a check kills one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from areal_conformance.mutate.cover import watched_lines
from areal_conformance.mutate.edits import Edit, mutants_from, read_edits
from areal_conformance.mutate.mutants import Mutant, diff
from areal_conformance.mutate.source import Source
from areal_core.cli.main import main
from areal_core.contract.errors import ConfigError

TEXT = """\
ROOM = 1024


class Engine:
    def pause(self, left, mode=3):
        if left < 1:
            self.go(left + 1)
        return [one for one in left
                if one > 2]

    def rest(self):
        return 1 + 1
"""


SUMS = """\
def double(x):
    spare = x + 1
    return x + x


def half(x):
    return x / 2
"""

EDITS = """\
[[edit]]
module = "their_sums"
old = "    return x + x\\n"
new = "    return x + x + 1\\n"
why = "every sum is one too many"

[[edit]]
module = "their_sums"
old = "x + 1"
new = "x + 2"
why = "nobody asks for it"

[[edit]]
module = "their_sums"
old = "x / 2"
new = "x / 3"
"""


def source_of(text: str = TEXT) -> Source:
    return Source(name="areal_mine.core", path=Path("/x/areal_mine/core.py"), text=text.encode())


def made(source: Source, old: str, new: str) -> Mutant:
    (mutant,) = mutants_from([Edit(module="areal_mine.core", old=old, new=new, why="it harms")], {source.name: source})
    assert source.changed(mutant.change) == TEXT.replace(old, new)
    return mutant


def test_an_edit_is_whole_lines_that_differ() -> None:
    """Lines that `old` and `new` share are left out; key and line are those of what differs."""
    source = source_of()
    mutant = made(
        source, "        if left < 1:\n            self.go(left + 1)\n", "        if left < 1:\n            pass\n"
    )

    assert (mutant.key.function, mutant.key.operator) == ("Engine.pause", "edit")
    assert (mutant.key.before, mutant.key.after, mutant.line) == ("self.go(left + 1)", "pass", 7)
    assert diff(source, mutant) == ("self.go(left + 1)", "pass")
    assert mutant.why == "it harms"


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("left < 1", "left < 2", {6}),
        ("one > 2", "one > 3", {8, 9}),
        ("left < 1:\n            self.go(left + 1)", "left < 2:\n            self.go(left)", {6, 7}),
        ("        if left < 1:\n            self.go(left + 1)\n", "", {6, 7}),
        ("            self.go(left + 1)\n", "            self.go(left + 1)\n            self.go(left)\n", {7}),
        ("self.go(left + 1)\n        return", "self.go(left + 1)\n        left = []\n        return", {7, 8, 9}),
        ("mode=3", "mode=4", {6, 7, 8, 9}),
        ("ROOM = 1024", "ROOM = 1", {6, 7, 8, 9, 12}),
    ],
)
def test_the_lines_that_look_at_an_edit(old: str, new: str, lines: set[int]) -> None:
    """Statements that it changes; beside what is put in, lines of `old`; a default is its function's."""
    source = source_of()

    assert watched_lines(source, made(source, old, new)) == lines


@pytest.mark.parametrize(
    ("module", "old", "new", "why"),
    [
        ("areal_mine.other", "left", "right", "there is no module 'areal_mine.other'"),
        ("areal_mine.core", "nowhere", "here", "does not stand in"),
        ("areal_mine.core", "left", "right", "stands 4 times"),
        ("areal_mine.core", "if left < 1:", "if left < :", "does not compile"),
        ("areal_mine.core", "        return 1 + 1", "        break", "does not compile"),
        ("areal_mine.core", "1 + 1", "(1 + 1)  # said again", "changes nothing"),
    ],
)
def test_an_edit_that_cannot_be_meant(module: str, old: str, new: str, why: str) -> None:
    """Says which edit, and why it cannot be tried."""
    source = source_of()
    edit = Edit(module=module, old=old, new=new, place="edit 2 of x.toml")

    with pytest.raises(ConfigError, match=r"edit 2 of x\.toml") as refused:
        mutants_from([edit], {source.name: source})
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("edit = 3", "has no edit"),
        ("[[edit]", "cannot be read"),
        ('[[edit]]\nmodule = "a"\nnew = ""', "missing: old"),
        ('[[edit]]\nmodule = "a"\nold = ""\nnew = "b"', "missing: old"),
        ('[[edit]]\nmodule = "a"\nold = "b"\nnew = 3\nwho = ""', "unknown or no text: new, who"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, why: str) -> None:
    """Says what is wrong, and in which file."""
    path = tmp_path / "edits.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"edits\.toml") as refused:
        read_edits([path])
    assert why in str(refused.value)


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    """In order of their names; one without any is refused."""
    for name in ("b", "a"):
        (tmp_path / f"{name}.toml").write_text(f'[[edit]]\nmodule = "{name}"\nold = "x"\nnew = ""\n')

    assert [edit.module for edit in read_edits([tmp_path])] == ["a", "b"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no \\*\\.toml"):
        read_edits([tmp_path / "empty"])


@pytest.mark.slow
def test_edits_are_tried_as_mutants_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suite_of: Callable[[str], str]
) -> None:
    """One dies, one lives with its reason in the report, one stands where no check looks; operators make none."""
    (tmp_path / "their_sums.py").write_text(SUMS)
    (tmp_path / "their_edited_suite.py").write_text(suite_of("their_sums"))
    (tmp_path / "edits.toml").write_text(EDITS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = ["--suite", "their_edited_suite:SUITE", "--edits", str(tmp_path / "edits.toml")]
    code = main(["conformance", "mutate", *options, "--report", str(tmp_path / "out")])
    told = capsys.readouterr().out

    assert code == 0, told
    rows = {row["key"]["before"]: row for row in json.loads((tmp_path / "out" / "mutation.json").read_text())["rows"]}
    fates = {before: row["trial"]["fate"] for before, row in rows.items()}
    assert fates == {"return x + x": "killed", "spare = x + 1": "survived", "return x / 2": "unseen"}
    assert "why it harms: nobody asks for it" in told


def test_edits_and_operators_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before anything starts."""
    options = ["--backend", "single_turn", "--edits", str(tmp_path), "--operator", "dtype"]

    assert main(["conformance", "mutate", *options]) == 2
    assert "two kinds" in capsys.readouterr().err
