"""A folder that only the run's user can enter, with names short enough for Unix sockets.

Knows: where such a folder may be, and how a later one finds those whose owner is dead.
Does not know: what is put inside. It imports no torch; `areal_torch.owned_folder` is for folders anywhere.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from areal_core.contract.errors import ResourceError

_PREFIX = "areal-ipc-"
_MAX_PATH_BYTES = 107
"""Of a Unix socket's address, by the kernel."""
NAME_DIGITS = 13
"""Of a socket in the folder: enough that no two are alike."""


class PrivateFolder:
    """Make `<root>/areal-ipc-XXXXXXXX`, mode 0700, in the first root that takes it; sweep what dead owners left.

    The owner holds a lock on the folder itself for as long as it lives: no process id is compared, so this holds for
    owners in other containers, too.

    Raises:
        ResourceError: no root will do; says why of each.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        refused: list[str] = []
        for root in roots:
            try:
                _sweep(root)
                self.path, self._lock = _make(root)
            except OSError as error:
                refused.append(f"{root}: {error.strerror or error}")
            else:
                return
        raise ResourceError(
            "no folder could be made for the sockets of this run",
            why="; ".join(refused),
            fix=f"set TMPDIR to a folder of yours with a path of less than {_room()} bytes",
        )

    def close(self) -> None:
        """Remove the folder and all in it. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def private_roots(environ: Mapping[str, str]) -> list[Path]:
    """Return where a private folder may be, best first: the user's own runtime folder, then temporary ones."""
    own = environ.get("XDG_RUNTIME_DIR", "")
    runtime = [Path(own)] if own and _is_mine(Path(own)) else []
    return list(dict.fromkeys([*runtime, Path(tempfile.gettempdir()), Path("/tmp")]))


def _room() -> int:
    return _MAX_PATH_BYTES - len(f"/{_PREFIX}XXXXXXXX/") - NAME_DIGITS


def _is_mine(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _make(root: Path) -> tuple[Path, int]:
    if len(os.fsencode(root)) > _room():
        raise OSError(f"a path of more than {_room()} bytes is too long for a Unix socket")
    while True:
        path = root / f"{_PREFIX}{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return path, lock
        except BlockingIOError:
            pass  # a sweep found it before it had its owner, and takes it away
        os.close(lock)


def _sweep(root: Path) -> None:
    for left in root.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or gone meanwhile
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            pass  # its owner lives
        finally:
            os.close(lock)
