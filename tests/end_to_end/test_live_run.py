"""What the tests of whole runs look with: nothing of a stranger counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from areal_torch.owned_folder import OwnedFolder

from .live_run import LiveRun

SHARED = Path("/dev/shm")


@pytest.mark.skipif(not SHARED.is_dir(), reason="there is no /dev/shm here")
def test_only_what_a_run_made_is_left_by_it(tmp_path: Path) -> None:
    """A name with the number of one of its processes is its own; a folder of this process, and a word, are not."""
    process = subprocess.Popen([sys.executable, "-c", ""], text=True)
    process.wait()
    run = LiveRun(tmp_path, process)
    own, word = SHARED / f"torch_{process.pid}_x", SHARED / f"areal-word-{tmp_path.name}".replace("0", "")
    others = OwnedFolder(SHARED, "areal-test")
    random = SHARED / f"psm_{process.pid}cabdc"  # letters and digits that chance put together
    try:
        assert run.left_in_shared_memory() == []
        own.touch()
        random.touch()
        word.touch()

        assert run.left_in_shared_memory() == [own.name]
    finally:
        others.close()
        own.unlink()
        random.unlink()
        word.unlink()
