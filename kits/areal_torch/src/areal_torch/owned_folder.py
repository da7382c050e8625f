"""A private folder that does not outlive its owner for long, however the owner ends.

Knows: the owner holds a file lock for as long as it lives; the kernel drops it at death.
Does not know: what is stored inside.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = ".owner"


class OwnedFolder:
    """Make `<root>/<prefix>-<process id>-XXXX`, mode 0700, and remove what dead owners left in `root`.

    No process id is compared: a lock taken on the folder's lock file proves that nobody
    holds it, in whichever container the owner ran.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        sweep(root, prefix)
        # The id is for whoever wonders whose it is; nothing is decided by it.
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}-{os.getpid()}-", dir=root))
        self.lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed only once locked, so that no sweep ever sees it without its owner.
        self.path = made.rename(root / made.name.removeprefix("."))

    def close(self) -> None:
        """Remove the folder and all in it. Idempotent."""
        if self.lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)
            self.lock = -1


def sweep(root: Path, prefix: str) -> None:
    """Remove the owned folders that dead owners left in `root`."""
    for left in root.glob(f"{prefix}-*"):
        remove_if_orphaned(left)


def remove_if_orphaned(path: Path) -> bool:
    """Remove an owned folder whose owner is dead; tell whether it was removed.

    The owner's peers call it when they end, its successors when they begin.
    """
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
