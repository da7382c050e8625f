"""A zygote: jobs in forks, deadlines, nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from areal_conformance.mutate.process import Late, Zygote
from areal_conformance.outcome import HarnessError

JOBS = """\
import os, signal, subprocess, sys, tempfile, time
import warm_one


def told(tell, text):
    tell(said=text, folder=tempfile.gettempdir(), warm="warm_one" in sys.modules)


def leaves(tell, hangs):
    left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    tell(left=left.pid)
    if hangs:
        signal.pause()


def dies(tell):
    tell(said="before")
    os.kill(os.getpid(), signal.SIGSEGV)


def orphaned(tell):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def keeps(where):
    open(where, "w").write(tempfile.mkdtemp())


def cold(tell):
    tell(loaded=[name for name in sys.modules if name.startswith("cold_")])
"""


@pytest.fixture
def zygote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zygote]:
    """Return one whose jobs are above; `warm_one` imports `cold_one`, which must not stay in memory."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "warm_one.py").write_text("import cold_one")
    (tmp_path / "cold_one.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    made = Zygote(["warm_one"], ["cold_one"])
    yield made
    made.close()
    assert not made.folder.exists()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_job_tells_and_ends(zygote: Zygote) -> None:
    """Each has a folder of its own for temporary files, which is gone with it."""
    first, second = (zygote.do("jobs:told", lambda _line: 60.0, text=text) for text in ("a", "b"))

    assert [code for _, code in (first, second)] == [0, 0]
    assert [lines[0]["said"] for lines, _ in (first, second)] == ["a", "b"]
    folders = {lines[0]["folder"] for lines, _ in (first, second)}
    assert len(folders) == 2 and not any(Path(folder).exists() for folder in folders)


def test_what_it_keeps_itself_is_gone_with_it(zygote: Zygote, tmp_path: Path) -> None:
    """Files that a job's checks are made with, and that nobody removes in a process that is killed."""
    zygote.load((), "jobs:keeps", where=str(tmp_path / "where"))

    assert Path((tmp_path / "where").read_text()).parent == zygote.folder


def test_nothing_cold_is_in_memory(zygote: Zygote) -> None:
    """What a warm module imports of a cold package is loaded by each job anew, so that a mutant of it is seen."""
    lines, _ = zygote.do("jobs:cold", lambda _line: 60.0)

    assert lines == [{"loaded": ["cold_one"]}]
    assert "warm_one" not in zygote.modules and "cold_one" not in zygote.modules


def test_a_job_that_hangs_is_killed_with_all_it_started(zygote: Zygote) -> None:
    """At its deadline, and the next job is done as if nothing had been."""
    with pytest.raises(Late) as caught:
        zygote.do("jobs:leaves", lambda line: 1.0 if line else 60.0, hangs=True)

    assert gone(caught.value.lines[0]["left"])
    assert zygote.do("jobs:told", lambda _line: 60.0, text="on")[0][0]["said"] == "on"


def test_what_a_job_leaves_is_killed(zygote: Zygote) -> None:
    """Also what made itself a session of its own."""
    lines, code = zygote.do("jobs:leaves", lambda _line: 60.0, hangs=False)

    assert code == 0 and gone(lines[0]["left"])


def test_a_job_that_dies_is_told(zygote: Zygote) -> None:
    """With the signal, after what it told before."""
    lines, code = zygote.do("jobs:dies", lambda _line: 60.0)

    assert (lines, code) == ([{"said": "before"}], -11)


@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is a signal on Linux alone")
def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Neither the zygote nor a job that hangs."""
    (tmp_path / "hanging.py").write_text("import signal\ndef hang(tell):\n    tell(said=1)\n    signal.pause()\n")
    code = (
        "from areal_conformance.mutate.process import Zygote\n"
        "def limit(line):\n    print('hangs' if line else 'waits', flush=True)\n    return 600.0\n"
        "zygote = Zygote((), ())\nprint(zygote.folder, flush=True)\nzygote.do('hanging:hang', limit)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        folder = parent.stdout.readline().strip()
        assert [parent.stdout.readline() for _ in range(2)] == ["waits\n", "hangs\n"]
        below = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
        parent.wait()
    shutil.rmtree(folder)

    assert len(below) == 2
    psutil.wait_procs(below, timeout=60)
    assert all(gone(process.pid) for process in below)


def test_a_zygote_that_is_gone_is_an_error(zygote: Zygote) -> None:
    """Of the harness, never of a mutant."""
    with pytest.raises(HarnessError, match="is gone"):
        zygote.do("jobs:orphaned", lambda _line: 60.0)
