"""`python -m areal_conformance.mutate.zygote`: a process that has libraries in memory, and forks one child a job.

    in   {"warm": [modules], "cold": [packages], "call": "module:function", "with": {...}}
    out  {"warm": [modules that are loaded now, in the order in which they began to be]}
    in   {"job": "module:function", "with": {...}, "folder": path}
    out  {"started": pid}   what the child tells, line by line   {"exited": code}

A child leads a session of its own; whatever it leaves running becomes this process's child, and is killed. On Linux
this process ends with its parent, and a child with it.
Of the suite and of backends nothing is loaded here unless `call` loads it, so a child imports them afresh.

Knows: forking. Imports the standard library only.
Does not know: what a job does (`child`), or deadlines (`process`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

_SET_SUBREAPER, _SET_DEATH_SIGNAL = 36, 1
Tell = Callable[..., None]


def main() -> None:
    """Serve standard input until it ends."""
    out = os.dup(1)
    os.dup2(2, 1)
    _prctl(_SET_SUBREAPER, 1)
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)

    def tell(**line: object) -> None:
        os.write(out, (json.dumps(line) + "\n").encode())

    for text in sys.stdin:
        order = json.loads(text)
        if "job" in order:
            _fork(order, tell)
            continue
        warm(order["warm"], tuple(order["cold"]))
        if order["call"]:
            _function(order["call"])(**order["with"])
        gc.collect()
        gc.freeze()
        tell(warm=list(sys.modules))


def warm(modules: Iterable[str], cold: tuple[str, ...]) -> None:
    """Import modules, but nothing of cold packages, also where a warm one asks for them."""
    for name in modules:
        before = set(sys.modules)
        with contextlib.suppress(Exception):  # whoever needs it will meet the error again
            importlib.import_module(name)
        new = set(sys.modules) - before
        if any(_is_of(one, cold) for one in new):
            for one in new:
                if _is_of(one, (*cold, name.partition(".")[0])):
                    del sys.modules[one]


def _is_of(module: str, packages: tuple[str, ...]) -> bool:
    mine = module == __name__ or module.startswith("areal_conformance.mutate") or module == "areal_conformance"
    return not mine and module.partition(".")[0] in packages


def _fork(order: dict[str, Any], tell: Tell) -> None:
    child = os.fork()
    if child == 0:
        tell(started=os.getpid())
        _be_child(order, tell)
    _, status = os.waitpid(child, 0)
    _sweep()
    tell(exited=os.waitstatus_to_exitcode(status))


def _be_child(order: dict[str, Any], tell: Tell) -> NoReturn:
    """Do the job; never returns into the zygote's frames."""
    code = 1
    try:
        os.setsid()
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        folder = Path(order["folder"])
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None
        log = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(old, new)
        _function(order["job"])(tell, **order["with"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _function(name: str) -> Any:
    """Return `module:function`. Any: jobs take what they like."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _sweep() -> None:
    """Kill what a child left, and what that left, until there is nothing more."""
    tasks = Path(f"/proc/self/task/{os.getpid()}/children")
    while tasks.is_file() and (left := tasks.read_text().split()):
        for pid in map(int, left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _prctl(what: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    main()
