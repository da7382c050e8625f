"""What others see of a folder while it is written: a look at each moment at which files come, go or change their names.

Knows: the events that Python tells auditors of (PEP 578) before it touches files.
Does not know: what writes them, or what is right. Writes of libraries that are no Python lie between two looks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Look = Callable[[], None]
_FILES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate")
_looks: list[Look] = []
"""Of the block that runs now; empty outside of one."""
_looking = threading.Lock()
_hooked: list[bool] = []


@contextmanager
def watching(look: Look) -> Iterator[None]:
    """Call `look` before each event, in whichever thread it happens, one at a time: no event of a look is looked at."""
    if not _hooked:  # an auditor stays for as long as its process
        sys.addaudithook(_audited)
        _hooked.append(True)
    _looks.append(look)
    try:
        yield
    finally:
        _looks.clear()


def _audited(event: str, arguments: tuple[object, ...]) -> None:
    if event in _FILES and _looks and _looking.acquire(blocking=False):
        try:
            for look in tuple(_looks):  # none, if the block has just ended in another thread
                look()
        finally:
            _looking.release()
