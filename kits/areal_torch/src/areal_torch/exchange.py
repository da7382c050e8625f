"""Two names of a file system change places in one step, so that nobody finds either of them missing.

Knows: the call of Linux that does it, and the errors by which a file system says that it cannot.
Does not know: what lies there.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_HERE = -100
"""AT_FDCWD: paths are those of this process."""
_EXCHANGE = 2
"""RENAME_EXCHANGE."""
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


def exchange(one: Path, other: Path) -> bool:
    """Give each of two paths that exist the name of the other, at once; False where the system has no such step.

    Raises:
        OSError: it has, and this went wrong; both are as they were.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # of Linux, with glibc 2.28 and later
    if call is None:
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    error = ctypes.get_errno()
    if error in _CANNOT:
        return False
    raise OSError(error, os.strerror(error), str(other))
