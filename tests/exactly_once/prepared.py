"""Processes that begin with their imports made: a run of the enumeration takes a second of them, not twenty.

`start` forks `areal` from this process, which has called `prepare`; whatever that run starts as `python -m MODULE` is
forked too, from spares made before the run has a thread. All else is as the run has it: each process is a child of the
one that started it, with the descriptors, environment, session and process group asked for, and dies of the same.

Knows: which modules take long to import, and how a fork becomes a program.
Does not know: what any of these programs do, or who is killed.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from areal_worker import watchdog

_MODULES = (
    *("torch", "transformers.models.qwen3.modeling_qwen3", "transformers.models.auto.tokenization_auto"),
    *("tensordict", "omegaconf.grammar_parser", "reasoning_gym", "uvloop"),
    *("areal_core.loop.run", "areal_tasks.workflows.single_turn", "areal_algorithms.objectives.ppo"),
    *("areal_reference.train.engine", "areal_reference.infer.engine", "areal_local.scheduler.local_scheduler"),
    *("areal_local.transports.shm", "areal_report.report", "areal_report.progress", "areal_episodes.store"),
)
_PROGRAMS = ("areal_local.scheduler.worker_main", "areal_local.rewards.process_main")
_LEFT_OUT = ("vl_convert",)
"""As if it were not installed: the pictures of a report take longer than a run of four steps."""
_STDIN, _STDOUT, _STDERR = range(3)
_OUT_OF_THE_WAY = 500
"""Descriptors from here on are not asked for by anybody."""
_HANDED_OVER = 16
"""Descriptors one program is given at most."""


def prepare() -> None:
    """Import what a run imports. Its processes share that memory as long as nobody writes it."""
    for name in (*_MODULES, *_PROGRAMS):
        importlib.import_module(name)
    for name in _PROGRAMS:
        del sys.modules[name]  # each is run as `__main__`
    sys.modules.update(dict.fromkeys(_LEFT_OUT))
    gc.collect()
    gc.freeze()


def start(program: Callable[[], int], output: Path, num_spares: int) -> psutil.Process:
    """Fork a process that runs `program`, with its output in a file, and may itself start so many others."""
    assert threading.active_count() == 1, "a fork has one thread: what the others hold would be held for ever"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        watchdog.die_with_parent()
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have it ignored
        nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _take([(nothing, _STDIN), (log, _STDOUT), (log, _STDERR)])
        _become(lambda: _with_spares(program, num_spares))
    return psutil.Process(pid)


def _with_spares(program: Callable[[], int], num_spares: int) -> int:
    Spares(num_spares).take_over()
    return program()


def _become(program: Callable[[], int]) -> None:
    """Run a program in this fork as if the process were its own, to its end."""
    code = 1
    try:
        code = program()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter does first at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Spares:
    """Forks that wait to be told which program they are."""

    def __init__(self, count: int) -> None:
        """Fork them from a process that has one thread."""
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, socket.socket]] = []
        for _ in range(count):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                for _, channel in self._waiting:
                    channel.close()
                ours.close()
                _become(lambda channel=theirs: _wait(channel))  # type: ignore[misc]
            theirs.close()
            moved = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
            ours.close()
            self._waiting.append((pid, socket.socket(fileno=moved)))

    def take_over(self) -> None:
        """Let `subprocess` hand programs to the spares, in the one place where it would fork."""
        self._fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]
        subprocess._fork_exec = self._launch  # type: ignore[attr-defined]

    def _launch(self, *arguments: Any) -> int:  # Any: what `_posixsubprocess.fork_exec` takes
        words, _, _, keep, cwd, env = arguments[:6]
        stdin, _, _, stdout, _, stderr = arguments[6:12]
        words = [os.fsdecode(word) for word in words]
        failed, new_session = arguments[13], arguments[15]
        if "-m" not in words or not new_session:
            return int(self._fork_exec(*arguments))
        with self._lock:
            if not self._waiting:
                return int(self._fork_exec(*arguments))  # as ever: only slower
            pid, channel = self._waiting.pop(0)
        first = words.index("-m") + 1
        given = [(own, wanted) for own, wanted in ((stdin, 0), (stdout, 1), (stderr, 2)) if own >= 0]
        given += [(number, number) for number in keep if number != failed]
        told = {
            "module": words[first],
            "words": words[first + 1 :],
            "cwd": os.fsdecode(cwd) if cwd else None,
            "env": None if env is None else [os.fsdecode(each) for each in env],
            "wanted": [wanted for _, wanted in given],
        }
        socket.send_fds(channel, [json.dumps(told).encode()], [own for own, _ in given])
        channel.close()
        return pid


def _wait(channel: socket.socket) -> int:
    watchdog.die_with_parent()
    os.setsid()
    message, numbers, _, _ = socket.recv_fds(channel, 1 << 18, _HANDED_OVER)
    channel.close()
    if not message:
        return 0
    told = json.loads(message)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if told["env"] is not None:
        os.environ.clear()
        os.environ.update(each.split("=", 1) for each in told["env"])
    if told["cwd"] is not None:
        os.chdir(told["cwd"])
    _take(list(zip(numbers, told["wanted"], strict=True)))
    sys.argv = [told["module"], *told["words"]]
    runpy.run_module(told["module"], run_name="__main__", alter_sys=True)
    return 0


def _take(given: Sequence[tuple[int, int]]) -> None:
    """Put descriptors where they are wanted."""
    moved = [(fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY), wanted) for own, wanted in given]
    for own in {own for own, _ in given}:
        os.close(own)
    for spare, wanted in moved:
        os.dup2(spare, wanted)
        os.close(spare)
