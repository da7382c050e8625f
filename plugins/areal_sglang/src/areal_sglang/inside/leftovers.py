"""End at once and leave nothing behind: what SGLang makes outside its temporary folder goes into it, or is not made.

Knows: the two things it makes in /dev/shm, and what it does when told to end.
Does not know: when the folder is removed.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang.srt.utils import kill_process_tree
from tqdm import tqdm


def beside(original: Callable[[str], str], ipc_name: str) -> str:
    """Hook of load_snapshot.shm_path_for: a file in the temporary folder, which all processes share."""
    return str(Path(tempfile.gettempdir()) / Path(original(ipc_name)).name)


def no_named_semaphore() -> None:
    """Keep progress bars from making a semaphore of the system, which outlives a killed process."""
    tqdm.set_lock(threading.RLock())


def at_once(original: Callable[..., Any], handler: Any, *_: Any) -> None:  # Any: SGLang's own
    """Hook of SignalHandler.sigterm_handler: end; SGLang looks every 5 s whether it was told to, and then drains."""
    kill_process_tree(os.getpid(), include_parent=True)
