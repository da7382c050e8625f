"""Engines whose calls say how to behave, for checks of schedulers. Workers read this file through `Job.imports`.

Knows: how to echo, wait, fail, print, spawn and die on demand, and what its own process is like.
Does not know: torch, models, or any scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from areal_core.contract.data import StopReason
from areal_core.contract.errors import PromptTooLong
from areal_core.contract.inference import (
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceSpec,
    PauseMode,
    VersionSpan,
)
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.marks import backend

NAME = "conformance_probe"
_INFO = {"engine": NAME, "engine_version": "1", "device": "cpu", "num_parameters": 0, "context_length": 9}
_HELD_S = 0.005
"""How long a train call keeps its thread, so that calls which overlap meet."""


class OwnPromptTooLong(PromptTooLong):
    """A plugin's own kind of a contract error."""


class OwnError(Exception):
    """An error only this process knows, which cannot be rebuilt from its message."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"left {left}, right {right}")


class Trap:
    """No contract type; whoever unpickles it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:  # Any: a function, as pickle wants it
        return os.mkdir, (self.path,)


@frozen(kw_only=True)
class ProbeOptions:
    """What the probe does when it is built, started and closed."""

    fail: str = ""
    """`build` or `start`: where it raises."""
    stubborn: bool = False
    """Neither `close` nor a signal that can be caught ends it."""


@backend(Manifest(role="infer", name=NAME, contract=(1, 0), factory="engine:Probe"), config=ProbeOptions)
class Probe:
    """`extras["do"]` of a request names what `generate` does; the answer is in the generation's `token_extras`."""

    def __init__(self, options: ProbeOptions) -> None:
        if options.fail == "build":
            raise RuntimeError("the probe was told to fail while being built")
        self._options = options
        self._version = 0
        self._calls = self._cancelled = self._running = 0
        self._paused = ""
        self._gates: dict[str, asyncio.Event] = {}

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Report the process's own facts."""
        if self._options.fail == "start":
            raise RuntimeError("the probe was told to fail while starting")
        if self._options.stubborn:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return EngineInfo(**_INFO, details={"pid": str(os.getpid()), "model": spec.model_path})  # type: ignore[arg-type]

    async def generate(self, request: GenerationRequest) -> Generation:
        """Do as told, and count it."""
        self._calls += 1
        self._running += 1
        try:
            given = await self._do(str(request.extras["do"]), request.extras)
        except asyncio.CancelledError:
            self._cancelled += 1
            raise
        finally:
            self._running -= 1
        count = len(request.input_ids)
        return Generation(
            output_ids=request.input_ids,
            logprobs=[-0.5] * count,
            version_spans=(VersionSpan(start=0, stop=count, version=self._version),) if count else (),
            stop_reason=StopReason.STOP,
            token_extras=given,
        )

    async def pause(self, mode: PauseMode) -> None:
        """Remember the mode."""
        self._paused = repr(mode)

    async def resume(self) -> None:
        """Forget it."""
        self._paused = ""

    async def commit_weights(self, version: int) -> None:
        """Take the version."""
        self._version = version

    async def abort_weights(self) -> None:
        """Do nothing."""

    async def status(self) -> EngineStatus:
        """Tell the counts."""
        return EngineStatus(
            version=self._version,
            num_running=self._running,
            num_waiting=0,
            paused=bool(self._paused),
            metrics={"calls": float(self._calls), "cancelled": float(self._cancelled)},
        )

    async def close(self) -> None:
        """Say so, or never end."""
        if self._options.stubborn:
            await asyncio.Event().wait()
        _write(f"{NAME} closed in good order")

    async def _do(self, what: str, extras: Mapping[str, Any]) -> dict[str, Any]:  # Any: whatever the check sends
        match what:
            case "echo":
                return {"value": extras["value"]}
            case "facts":
                return _facts(extras.get("names", ()))
            case "mode":
                return {"paused": self._paused}
            case "wait":
                await self._gate(extras["gate"]).wait()
                return {"gate": extras["gate"]}
            case "open":
                self._gate(extras["gate"]).set()
            case "deaf":
                return await self._deaf(extras["gate"])
            case "print":
                _write(*extras["lines"], stream=extras["stream"], end=extras.get("end", "\n"))
            case "trap":
                return {"value": Trap(extras["path"])}
            case "spawn":
                return {"pid": _child()}
            case "exit":
                _write(*extras.get("lines", ()))
                _write(extras.get("unfinished", ""), end="")
                os._exit(extras["code"])
            case "raise":
                raise _error(extras)
            case "cancel itself":
                raise asyncio.CancelledError
            case _:
                raise ValueError(f"the probe cannot {what!r}")
        return {}

    async def _deaf(self, name: str) -> dict[str, Any]:
        """Answer after the gate opened, whoever cancelled it meanwhile."""
        gate = self._gate(name)
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        return {"value": f"the answer of {name}"}

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())


@frozen(kw_only=True)
class TrainProbeOptions:
    """What a rank does when it is started."""

    meet: bool = False
    """Find the other ranks at the address given."""
    held_s: float = 0.0
    """For how long saving weights takes."""
    loads_s: float = 0.0
    """For how long starting takes."""


@backend(Manifest(role="train", name=NAME, contract=(1, 0), factory="engine:TrainProbe"), config=TrainProbeOptions)
class TrainProbe:
    """Notes which calls came in which order, in which thread, and whether two were ever at work at once."""

    def __init__(self, options: TrainProbeOptions) -> None:
        self._options = options
        self._version = 0
        self._log: list[str] = []
        self._threads: set[int] = set()
        self._busy = self._overlapped = False

    @property
    def version(self) -> int:
        """Return the version."""
        return self._version

    @version.setter
    def version(self, value: int) -> None:
        self._note(f"version {value}")
        self._version = value

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Tell the rank it was given."""
        self._note("start")
        details = {"rank": str(rank.rank), "world_size": str(rank.world_size), "role": spec.role}
        time.sleep(self._options.loads_s)
        if self._options.meet:
            details["met"] = ",".join(map(str, sorted(_meet(rank))))
        return EngineInfo(**_INFO, data_rank=rank.rank, data_size=rank.world_size, details=details)  # type: ignore[arg-type]

    def save_weights(self, path: Path) -> None:
        """Note the call, and stay in it as long as told."""
        self._note(f"{type(path).__name__.removeprefix('Posix')} {path.name}")
        time.sleep(self._options.held_s)

    def load_state(self, path: Path) -> None:
        """Fail, as an engine without such a state."""
        raise FileNotFoundError(f"no state at {path}")

    def save_state(self, path: Path) -> None:
        """Write what was noted so far."""
        told = {"log": self._log, "threads": len(self._threads), "overlapped": self._overlapped}
        path.write_text(json.dumps(told))

    def close(self) -> None:
        """Say so."""
        _write(f"{NAME} closed in good order")

    def _note(self, call: str) -> None:
        self._overlapped |= self._busy
        self._busy = True
        time.sleep(_HELD_S)
        self._log.append(call)
        self._threads.add(threading.get_ident())
        self._busy = False


def _meet(rank: RankContext) -> list[int]:
    """Return the ranks that came to the address; rank 0 listens there, the others call until it does."""
    place = urlsplit(rank.init_method)
    address = (str(place.hostname), int(place.port or 0))
    deadline = time.monotonic() + rank.timeout_s
    if rank.rank == 0:
        with socket.create_server(address) as listener:
            listener.settimeout(rank.timeout_s)
            others = [listener.accept()[0] for _ in range(rank.world_size - 1)]
            told = [0, *(other.recv(1)[0] for other in others)]
            for other in others:
                other.sendall(bytes(told))
                other.close()
        return told
    while True:
        try:
            with socket.create_connection(address, timeout=rank.timeout_s) as connection:
                connection.sendall(bytes([rank.rank]))
                return list(connection.recv(rank.world_size))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_HELD_S)


def _child() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def _facts(names: Any) -> dict[str, Any]:  # Any: names of variables, and plain data
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "cwd": str(Path.cwd()),
        "executable": sys.executable,
        "env": {name: os.environ[name] for name in names if name in os.environ},
        "torch": "torch" in sys.modules,
    }


def _error(extras: Mapping[str, Any]) -> BaseException:
    match extras["kind"]:
        case "given":
            error: BaseException = extras["error"]
            return error
        case "own areal":
            return OwnPromptTooLong("much too long", why="9 > 8", fix="shorten it")
        case "own":
            return OwnError(3, 4)
        case "key":
            return KeyError("a key that is not there")
        case "surrogate":
            return ZeroDivisionError("no tokens \ud800 at all")
        case "group":
            return ExceptionGroup("two at once", [ValueError("one of two"), TypeError("other of two")])
        case "empty":
            return RuntimeError()
        case kind:
            return AssertionError(f"the probe knows no error {kind!r}")


def _write(*lines: str, stream: str = "stdout", end: str = "\n") -> None:
    out = sys.stderr if stream == "stderr" else sys.stdout
    for line in lines:
        out.write(f"{line}{end}")
    out.flush()
