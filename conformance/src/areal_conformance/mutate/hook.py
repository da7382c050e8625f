"""In this process and in all that it starts: the source of one file is another, or every line that runs is told.

    begin({"path": "/x/areal_mine/engine.py", "source": "/tmp/mutant.py"})      replace
    begin({"trace": ["/x/areal_mine/"], "to": "/tmp/lines.txt"})                tell lines, one `path:line` each

What a process starts is reached by an environment variable and by `inject/sitecustomize.py` on its PYTHONPATH; a
process that clears its environment is not. No file of the backend is written.

Knows: loaders and tracing. Imports the standard library only: every process of a check imports this.
Does not know: mutants, checks.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.machinery
import json
import os
import sys
import threading
from collections import deque
from types import CodeType, FrameType
from typing import Any

VARIABLE = "AREAL_MUTATION"
"""Holds what `begin` was given, as JSON, for the processes that this one starts."""
INJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")  # noqa: PTH100, PTH118, PTH120


def begin(what: dict[str, Any]) -> None:
    """Do it here and in every process started from now on. Any: JSON. Call it before the file is imported."""
    os.environ[VARIABLE] = json.dumps(what)
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != INJECT]
    os.environ["PYTHONPATH"] = os.pathsep.join([INJECT, *others])
    if INJECT not in sys.path:
        sys.path.insert(0, INJECT)  # some processes are given this process's path
    begin_here()


def begin_here() -> None:
    """Do what the environment says; nothing where it says nothing."""
    said = os.environ.get(VARIABLE)
    if not said:
        return
    what = json.loads(said)
    if "source" in what:
        _replace(what["path"], what["source"])
    else:
        _tell(tuple(what["trace"]), what["to"])


def _replace(path: str, replacement: str) -> None:
    """Compile `replacement` wherever the file at `path` is imported or run, and leave its cache alone."""
    loader = importlib.machinery.SourceFileLoader
    original = loader.get_code
    wanted = os.path.realpath(path)

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        if os.path.realpath(self.path) != wanted:
            return original(self, fullname)
        with open(replacement, "rb") as file:  # noqa: PTH123
            code: CodeType = compile(file.read(), self.path, "exec", dont_inherit=True)
        return code

    loader.get_code = get_code  # type: ignore[assignment, method-assign]


def _tell(prefixes: tuple[str, ...], to: str) -> None:
    """Write each line of files below `prefixes` when it runs for the first time; a killed process has told its own."""
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    told: set[tuple[str, int]] = set()
    waiting: deque[bytes] = deque()

    def tell(path: str, line: int) -> None:
        if (path, line) not in told:
            told.add((path, line))
            waiting.append(f"{path}:{line}\n".encode())
            write()

    def write() -> None:
        with contextlib.suppress(IndexError):  # another thread has written it
            while waiting:
                text = waiting.popleft()
                try:
                    text = text[os.write(descriptor, text) :]
                except OSError:  # a check lets no file grow: told when that is over
                    waiting.appendleft(text)
                    return
                if text:
                    waiting.appendleft(text)

    atexit.register(write)

    if hasattr(sys, "monitoring"):
        _monitor(prefixes, tell)
    else:
        _trace(prefixes, tell)


def _trace(prefixes: tuple[str, ...], tell: Any) -> None:
    # Any: a function of a path and a line.
    def line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            tell(frame.f_code.co_filename, frame.f_lineno)
        return line

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(prefixes) else None

    threading.settrace(call)
    sys.settrace(call)


def _monitor(prefixes: tuple[str, ...], tell: Any) -> None:
    # Any: a function of a path and a line; the module, whose stubs are of Python 3.12.
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]

    def line(code: CodeType, number: int) -> Any:
        if code.co_filename.startswith(prefixes):
            tell(code.co_filename, number)
        return monitoring.DISABLE

    tool = monitoring.COVERAGE_ID
    monitoring.use_tool_id(tool, "areal conformance mutate")
    monitoring.register_callback(tool, monitoring.events.LINE, line)
    monitoring.set_events(tool, monitoring.events.LINE)
