"""The hook reaches this process, those it starts and theirs; no file is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_conformance.mutate.cover import read_lines

MINE = """\
import threading

ROOM = 1


def told():
    if ROOM > 1:
        return "changed"
    return "as it is"


def in_a_thread():
    thread = threading.Thread(target=told)
    thread.start()
    thread.join()
"""
STARTS = """\
import json, subprocess, sys
from areal_conformance.mutate.hook import begin
begin(json.loads(sys.argv[1]))
code = sys.argv[2]
if sys.argv[3] == "here":
    exec(code)
else:
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    subprocess.run([sys.executable, "-P", "-c", below])
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a module of its own on the import path of what is started."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def started(mine: Path, what: str, code: str, where: str) -> str:
    """Run code under the hook in a fresh process, or in the child of a child of it."""
    environment = {**os.environ, "PYTHONPATH": str(mine.parent), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-P", "-c", STARTS, what, code, where]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("where", ["here", "below"])
def test_the_source_of_one_module_is_another_everywhere(mine: Path, tmp_path: Path, where: str) -> None:
    """What is imported is the mutant, also two processes further down; the file and its cache stay as they are."""
    other = tmp_path / "other.txt"
    other.write_text(MINE.replace("ROOM = 1", "ROOM = 2"))
    what = f'{{"path": "{mine}", "source": "{other}"}}'

    assert started(mine, what, "import mine; print(mine.told())", where) == "changed"

    assert mine.read_text() == MINE
    plain = [sys.executable, "-c", "import mine; print(mine.told())"]
    again = subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert again.stdout.strip() == "as it is"


@pytest.mark.parametrize("where", ["here", "below"])
def test_lines_that_run_are_told_from_everywhere(mine: Path, tmp_path: Path, where: str) -> None:
    """Lines of a function count when they run, in threads and in processes below, and no others."""
    to = tmp_path / "lines.txt"
    what = f'{{"trace": ["{mine}"], "to": "{to}"}}'

    started(mine, what, "import mine; mine.in_a_thread()", where)

    lines = read_lines(to)[mine.resolve()]
    assert {7, 9, 13, 14, 15} <= lines and 8 not in lines


def test_a_process_that_is_killed_has_told_its_lines(mine: Path, tmp_path: Path) -> None:
    """Each line is written when it first runs, not at the end."""
    to = tmp_path / "lines.txt"
    what = f'{{"trace": ["{mine}"], "to": "{to}"}}'

    started(mine, what, "import mine, os; mine.told(); os.kill(os.getpid(), 9)", "below")

    assert {7, 9} <= read_lines(to)[mine.resolve()]


@pytest.mark.parametrize(
    "ends", ["resource.setrlimit(size, (-1, -1)); mine.in_a_thread()", "resource.setrlimit(size, (-1, -1))"]
)
def test_lines_that_run_while_no_file_may_grow_are_told_after_it(mine: Path, tmp_path: Path, ends: str) -> None:
    """A check that fills a disk is not broken by being watched, and its lines come whole."""
    to = tmp_path / "lines.txt"
    what = f'{{"trace": ["{mine}"], "to": "{to}"}}'
    room = len(f"{mine}:1\n") + 3  # a line and a piece of the next
    grown = f"os.stat({str(to)!r}).st_size + {room}"
    limited = f"import mine, os, resource; size = resource.RLIMIT_FSIZE; resource.setrlimit(size, ({grown}, -1))"

    assert started(mine, what, f"{limited}; print(mine.told()); {ends}", "here") == "as it is"

    lines = read_lines(to)
    assert {7, 9} <= lines[mine.resolve()]
    assert list(lines) == [mine.resolve()]
