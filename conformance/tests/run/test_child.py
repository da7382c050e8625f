"""The process that makes the checks: nothing of the host reaches in, and its end is always understood."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.benches.warm import warm_process

from areal_conformance.cli.child import INTERRUPTED, arguments_of, environment_of, follow
from areal_conformance.cli.run import MAX_ALIKE, _alike, _closed
from areal_conformance.outcome import Outcome
from areal_conformance.run.asked import Asked
from areal_conformance.run.journal import Journal, Reader, Story
from areal_conformance.run.plan import make_plan
from areal_conformance.run.record import Row, read_record

AREAL = [sys.executable, "-m", "areal_core.cli.main"]
HOSTILE_INI = (
    "[pytest]\naddopts = -k nothing_is_called_so -p hostile\npython_files = other_*.py\nfilterwarnings = error\n"
)
HOSTILE_CONFTEST = """
import pytest
def pytest_collection_modifyitems(items):
    items.clear()
def pytest_sessionfinish(session):
    session.exitstatus = 0
"""


def areal(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `areal WORDS` in a folder."""
    return subprocess.run(
        [*AREAL, *words], cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=240
    )


def test_a_hostile_host_does_not_reach_in(tmp_path: Path) -> None:
    """Its ini, conftest, plugins and variables: every check of the profile still runs."""
    for name, text in {
        "pytest.ini": HOSTILE_INI,
        "conftest.py": HOSTILE_CONFTEST,
        "hostile.py": "raise RuntimeError('hostile plugin imported')\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-k nothing'\n",
        "pytest.py": "raise RuntimeError('pytest of the current folder')\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ("conformance", "run", "--backend", "local", "--level", "0", "--report", "out")
    ended = areal(
        tmp_path, *words, PYTEST_ADDOPTS="-k nothing_is_called_so", PYTEST_PLUGINS="hostile", PYTHONSAFEPATH="1"
    )
    record = read_record(tmp_path / "out")

    assert "hostile" not in ended.stdout + ended.stderr
    assert len(record.checks) > 0, ended.stdout + ended.stderr
    assert [row.id for row in record.checks if row.missing] == []
    assert "; 0 missing." in record.line
    assert record.line in ended.stdout
    assert {"report.json", "report.md", "report.html", "badge.svg"} == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert not (tmp_path / ".pytest_cache").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--backend", "no_such_thing"), "nothing named 'no_such_thing' is installed"),
        (("--backend", "local", "--level", "9"), "there is no level 9"),
        (("--backend", "local", "--level", "0", "--check", "x.y"), "'x.y' is not a check of this run"),
        (
            ("--backend", "local", "--level", "0", "--check", "scheduler.calls.tensors"),
            "--level 1 --ranks 1, or higher",
        ),
        (("--backend", "local", "--ledger", "none.toml"), "cannot be read"),
        (
            ("--backend", "local", "--level", "0", "--report", "/dev/null/out"),
            "--report /dev/null/out cannot be written",
        ),
        ((), "no target is named"),
    ],
)
def test_bad_input_exits_with_2(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    """And one sentence, before any check."""
    ended = warm_process().run(("conformance", "run", *words), os.environ, tmp_path)

    assert (ended.returncode, told in ended.stderr) == (2, True), ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_command_line_names_its_own_configuration(tmp_path: Path) -> None:
    """No file of the host is looked for."""
    words = arguments_of(Asked(backend="x", role="infer", only=("infer.a.b",)), "areal ...")

    for word in ("-P", "--noconftest", "no:cacheprovider", "--areal-check=infer.a.b", "--areal-role=infer"):
        assert word in words
    assert words[words.index("-c") + 1].endswith("suite.ini")
    kept = environment_of({"PYTEST_ADDOPTS": "-x", "PYTEST_PLUGINS": "p", "HOME": "/h"})
    assert {"HOME": "/h", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}.items() <= kept.items()
    assert not {"PYTEST_ADDOPTS", "PYTEST_PLUGINS"} & kept.keys()


Child = Callable[..., tuple[Story, str]]


@pytest.fixture
def child(tmp_path: Path, make: Any, offer: Any) -> Child:
    """Return a function that follows processes which write one line and then do something to themselves.

    `then` may `put` lines, and `claim` checks as the suite does.
    """
    helpers = """
import json, os, signal, sys, time
claims, journal = (word.partition("=")[2] for word in sys.argv[-2:])
f = open(journal, "a")
def put(**line): f.write(json.dumps(line) + "\\n"); f.flush()
def done(row): put(ended=dict(id=row, title="t", law=7, spec="s", level=1, tier="core", outcome="pass"))
def claim(row):
    try: os.close(os.open(os.path.join(claims, row), os.O_CREAT | os.O_EXCL))
    except FileExistsError: return False
    put(began=row, limit_s=60)
    return True
"""

    def followed(line: str, then: str, *more: str, jobs: int = 1) -> tuple[Story, str]:
        suite = offer(make("a.one"), make("a.two"), *map(make, more))
        asked = Asked(backend="toy", role="workflow")
        plan = make_plan(asked, suite, now=datetime.now().astimezone(), command="c")
        journal = Journal(tmp_path / "journal-0.jsonl")
        journal.write(opened=plan.record, planned=[check.id for check in plan.checks], jobs=jobs)
        journal.close()
        for number in range(1, jobs):
            shutil.copy(tmp_path / "journal-0.jsonl", tmp_path / f"journal-{number}.jsonl")
        code = f"{helpers}\nf.write({line!r}); f.flush()\n{then}"
        return follow([sys.executable, "-c", code], os.environ, tmp_path, lambda story: None, worth=1)

    return followed


def test_a_process_that_dies_leaves_an_incomplete_record(child: Child) -> None:
    """The last check is named as what ran; it is missing, and no process goes on for nothing."""
    story, ended = child("", "claim('workflow.a.one'); done('workflow.a.one'); claim('workflow.a.two'); os._exit(3)")
    record = _closed(story, ended, 1.0)

    assert record.verdict == "incomplete"
    assert "1 missing" in record.line
    assert "it exited with 3" in record.checks[1].message
    assert record.notes == ("a process that made checks failed: it exited with 3, while workflow.a.two ran",)


def test_a_run_that_a_person_stopped_blames_nobody(child: Child) -> None:
    """What ran is told; no law is broken by Ctrl-C."""
    began = json.dumps({"began": "workflow.a.one", "limit_s": 60}) + "\n"
    story, ended = child(began, "import time; os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    record = _closed(story, ended, 1.0)

    assert record.verdict == "incomplete"
    assert record.notes[-1] == "the run was interrupted, while workflow.a.one ran"
    assert not record.checks[0].message


def test_ctrl_c_is_heard_whatever_the_process_does_then(tmp_path: Path, offer: Any, make: Any) -> None:
    """An exception out of a callback of the interpreter, as while garbage is collected, is lost; a signal is not."""

    class Ends:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    held = [Ends()]
    opened = make_plan(Asked(backend="toy", role="workflow"), offer(make("a.one")), now=datetime.now(), command="c")
    journal = Journal(tmp_path / "journal-0.jsonl")
    journal.write(opened=opened.record, planned=["workflow.a.one"])
    journal.close()
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    _, ended = follow(words, os.environ, tmp_path, lambda _: held.clear())

    assert ended == INTERRUPTED


def test_what_ends_the_command_ends_its_child_first(child: Child) -> None:
    """A `timeout` or a service manager sends SIGTERM: no server stays behind, and the record says why it ends."""
    story, ended = child(
        json.dumps({"began": "workflow.a.one", "limit_s": 60}) + "\n",
        "import time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)",
    )

    assert ended == INTERRUPTED
    assert story.running


def test_many_failures_in_the_same_words_are_told_once(row: Callable[..., Row]) -> None:
    """Whatever law each breaks: one cause is one paragraph. A few, or other words, or another end stay apart."""
    alike = [row(f"a.{number}", "fail", message=f"law {number}: x\nno start") for number in range(MAX_ALIKE + 1)]
    other = [row("b.one", "fail", message="law 1: x\ngot 3"), row("b.two", "error", message="no start")]

    assert _alike([*alike, *other]) == [alike, [other[0]], [other[1]]]
    assert _alike(alike[:MAX_ALIKE]) == [[one] for one in alike[:MAX_ALIKE]]


def test_a_process_that_is_killed_is_told_by_its_signal(child: Child) -> None:
    """A segmentation fault of an engine, for one."""
    _, ended = child("", "os.kill(os.getpid(), signal.SIGSEGV)")

    assert ended == "it was ended by SIGSEGV"


def test_a_process_that_goes_silent_is_killed(child: Child) -> None:
    """Beyond every limit of the check that runs: not even its deadline was kept."""
    story, ended = child(
        "",
        """
for row in ("workflow.a.one", "workflow.a.two"):
    if claim(row):
        put(began=row, limit_s=0.2)
        signal.pause()
""",
    )
    record = _closed(story, ended, 1.0)

    assert "said nothing" in ended
    assert [row.outcome for row in record.checks] == [Outcome.NOT_RUN, Outcome.NOT_RUN]
    assert all("law 9" in row.message for row in record.checks)


def test_a_fresh_process_goes_on_behind_what_was_given_up(child: Child) -> None:
    """Behind a check that missed its deadline and behind one that took its process with it; each process is told."""
    then = """
if claim("workflow.a.one"):
    done("workflow.a.one"); put(again="workflow.a.one")
elif claim("workflow.a.two"):
    os.kill(os.getpid(), signal.SIGSEGV)
elif claim("workflow.b.one"):
    done("workflow.b.one"); put(closed=True)
"""
    story, ended = child("", then, "b.one")
    record = _closed(story, ended, 1.0)

    assert (ended, story.closed) == ("", True)
    assert {row.id: str(row.outcome) for row in record.checks} == {
        "workflow.a.one": "pass",
        "workflow.a.two": "not-run",
        "workflow.b.one": "pass",
    }
    assert "it was ended by SIGSEGV" in record.checks[1].message
    assert record.notes[-1] == "a fresh process went on behind workflow.a.two: it was ended by SIGSEGV"


def test_processes_beside_each_other_share_the_checks(child: Child) -> None:
    """Each check is made once, by whoever is free; one process that dies is followed by another, the rest go on."""
    then = """
for row in ("workflow.a.one", "workflow.a.two", "workflow.b.one", "workflow.b.two"):
    if claim(row):
        while row == "workflow.a.one" and len(os.listdir(claims)) < 4: time.sleep(0.01)  # the others are another's
        if row == "workflow.b.one": os.kill(os.getpid(), signal.SIGSEGV)
        done(row)
put(closed=True)
"""
    story, ended = child("", then, "b.one", "b.two", jobs=2)
    record = _closed(story, ended, 1.0)

    assert (ended, story.closed) == ("", True)
    assert [str(row.outcome) for row in record.checks] == ["pass", "pass", "not-run", "pass"]
    assert len(story.rows) == 4
    assert record.notes == ("a fresh process went on behind workflow.b.one: it was ended by SIGSEGV",)


def test_processes_that_die_at_the_end_are_all_told(child: Child) -> None:
    """Two that are lost in the last two checks: both rows and both ends are there."""
    then = """
for row in ("workflow.a.one", "workflow.a.two"):
    if claim(row):
        while len(os.listdir(claims)) < 2: time.sleep(0.01)
        os._exit(3 if row == "workflow.a.one" else 4)
"""
    story, ended = child("", then, jobs=2)
    record = _closed(story, ended, 1.0)

    assert "it exited with 3, while workflow.a.one ran" in ended
    assert "it exited with 4, while workflow.a.two ran" in ended
    assert all("the process of the check is gone" in row.message for row in record.checks)


def test_one_that_cannot_go_on_leaves_the_rest_to_the_others(child: Child) -> None:
    """What one of them says before its first check, and a check that ends its process in silence, are told."""
    then = """
if journal.endswith("1.jsonl"):
    print("no memory left"); put(refused="ConfigError: no memory")
    sys.exit(4)
for row in ("workflow.a.one", "workflow.a.two", "workflow.b.one"):
    if claim(row):
        if row == "workflow.a.two": os._exit(0)
        done(row)
put(closed=True)
"""
    story, ended = child("", then, "b.one", jobs=2)
    record = _closed(story, ended, 1.0)

    assert not story.refused
    assert [str(row.outcome) for row in record.checks] == ["pass", "not-run", "pass"]
    assert ended == "it could not be prepared: ConfigError: no memory"
    assert "a fresh process went on behind workflow.a.two: it exited with 0" in record.notes
    assert story.said == "no memory left\n"


def test_processes_that_are_ended_are_asked_all_at_once(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not listen costs its own time: who is asked after it finds it alive still."""
    monkeypatch.setattr("areal_conformance.cli.child.END_S", 0.5)
    then = """
number, folder = journal[-7], os.path.dirname(journal)
def asked(*_):
    other = int(open(os.path.join(folder, f"pid-{1 - int(number)}")).read())
    with open(f"/proc/{other}/stat") as stat: alive = stat.read().split()[2] != "Z"
    open(os.path.join(folder, f"asked-{number}"), "w").write(str(alive))
signal.signal(signal.SIGTERM, asked)
claim(("workflow.a.one", "workflow.a.two")[int(number)])
open(os.path.join(folder, f"pid-{number}.tmp"), "w").write(str(os.getpid()))
os.rename(os.path.join(folder, f"pid-{number}.tmp"), os.path.join(folder, f"pid-{number}"))
while not os.path.exists(os.path.join(folder, f"pid-{1 - int(number)}")): time.sleep(0.01)
if number == "1": os.kill(os.getppid(), signal.SIGINT)
while True: time.sleep(60)
"""
    _, ended = child("", then, jobs=2)

    assert ended == INTERRUPTED
    assert [(tmp_path / f"asked-{number}").read_text() for number in (0, 1)] == ["True", "True"]


def test_what_a_check_left_ends_with_its_process(child: Child, tmp_path: Path) -> None:
    """A server that a crashed check had started holds ports, memory, a device: the next check would find them taken."""
    then = """
import subprocess
if claim("workflow.a.one"):
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(journal + ".pid", "w").write(str(server.pid))
    os._exit(3)
claim("workflow.a.two"); done("workflow.a.two"); put(closed=True)
"""
    story, ended = child("", then)
    server = int((tmp_path / "journal-0.jsonl.pid").read_text())

    assert (ended, story.closed) == ("", True)
    assert not psutil.pid_exists(server) or psutil.Process(server).status() == psutil.STATUS_ZOMBIE


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    """The reader may come in the middle of a write."""
    path = tmp_path / "journal"
    reader = Reader(path)
    assert reader.lines() == []
    path.write_text('{"noted": "a"}\n{"noted', encoding="utf-8")
    assert reader.lines() == [{"noted": "a"}]
    with path.open("a", encoding="utf-8") as file:
        file.write('": "b"}\n')
    assert reader.lines() == [{"noted": "b"}]
