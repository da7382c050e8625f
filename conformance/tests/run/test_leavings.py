"""Shared memory of a mutant goes with its process, however that ends; nobody else's does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from areal_proof import leavings

LEAVE = "from areal_proof.leavings import leave; room = leave(); print(room.name, flush=True); input()"

pytestmark = pytest.mark.skipif(not leavings.SHARED.is_dir(), reason="there is no /dev/shm here")


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_has_is_not() -> None:
    """Killed with Python's own tracker, as the self-test does when a process has done its share."""
    processes = [
        subprocess.Popen([sys.executable, "-c", LEAVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = [process.stdout.readline().strip() for process in processes if process.stdout]
    strange = leavings.SHARED / "areal-proof-of-something-else"
    strange.touch()
    try:
        (tracker,) = psutil.Process(processes[0].pid).children()
        tracker.kill()
        processes[0].kill()
        processes[0].wait()

        removed = leavings.sweep()

        assert names[0] in removed
        assert names[1] not in removed
        assert [(leavings.SHARED / name).exists() for name in names] == [False, True]
        assert strange.exists()
    finally:
        strange.unlink()
        for process in processes:
            process.communicate("\n" if process.returncode is None else None, timeout=60)


def test_a_name_of_a_process_number_that_was_given_out_again_is_removed(tmp_path: Path) -> None:
    """The number alone would say that its maker lives: it is this process's, which began at another time."""
    old = leavings.SHARED / f"areal-proof-{os.getpid()}-1-{tmp_path.name[-8:]}".replace("_", "x")
    old.touch()

    assert old.name in leavings.sweep()
