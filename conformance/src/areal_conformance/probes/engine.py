"""An engine whose calls say how to behave, for checks of schedulers. Workers read this file through `Job.imports`.

Knows: how to echo, wait, fail, print, spawn and die on demand, and what its own process is like.
Does not know: torch, models, or any scheduler; ranks of a training role (`trainer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.plugins.claims import full
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.marks import backend

NAME = "conformance_probe"
PLAIN = "conformance_probe_plain"
"""One without optional abilities."""
_INFO = {"engine": NAME, "engine_version": "1", "device": "cpu", "num_parameters": 0, "context_length": 9}
_ABILITIES = ("scoring", "memory.sleep", "lora.adapters", "tools.parse")
_DEEP = 12
"""How many calls below the first an error is raised."""


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
    lingers_s: float = 0.0
    """For how long it closes."""


@backend(Manifest(role="infer", name=PLAIN, contract=(1, 2), factory="engine:PlainProbe"), config=ProbeOptions)
class PlainProbe:
    """`extras["do"]` of a request names what `generate` does; the answer is in the generation's `token_extras`."""

    def __init__(self, options: ProbeOptions) -> None:
        if options.fail == "build":
            raise RuntimeError("the probe was told to fail while being built")
        self._options = options
        self._version = 0
        self._calls = self._cancelled = self._running = 0
        self._paused = ""
        self._gates: dict[str, asyncio.Event] = {}
        self._noted: list[tuple[Any, ...]] = []  # Any: arguments of calls

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

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Return the receipt of no tensors."""
        manifest = source.manifest
        return Receipt(version=manifest.version, num_bytes=version, seconds=0.0, fingerprints={})

    async def abort_weights(self) -> None:
        """Note the call."""
        self._noted.append(("abort_weights",))

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
        await asyncio.sleep(self._options.lingers_s)
        _write(f"{NAME} closed in good order")

    async def _do(self, what: str, extras: Mapping[str, Any]) -> dict[str, Any]:  # Any: whatever the check sends
        match what:
            case "echo":
                return {"value": extras["value"]}
            case "facts":
                return _facts(extras.get("names", ()))
            case "mode":
                return {"paused": self._paused}
            case "noted":
                noted, self._noted = self._noted, []
                return {"value": noted}
            case "wait":
                await self._gate(extras["gate"]).wait()
                return {"gate": extras["gate"]}
            case "open":
                self._gate(extras["gate"]).set()
            case "deaf":
                return await self._deaf(extras["gate"])
            case "print":
                whole = {"end": extras.get("end", "\n"), "flush": extras.get("flush", True)}
                _write(*extras["lines"], stream=extras["stream"], **whole)
            case "write":
                os.write(1, extras["value"])
            case "trap":
                return {"value": Trap(extras["path"])}
            case "spawn":
                return {"pid": _child()}
            case "exit":
                _write(*extras.get("lines", ()))
                _write(extras.get("unfinished", ""), end="")
                os._exit(extras["code"])
            case "raise" if extras["kind"] == "deep":
                _descend(_DEEP)
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


@backend(
    Manifest(
        role="infer", name=NAME, contract=(1, 2), factory="engine:Probe", claims=dict.fromkeys(_ABILITIES, full())
    ),
    config=ProbeOptions,
)
class Probe(PlainProbe):
    """One with optional abilities."""

    async def sleep(self) -> None:
        """Note the call."""
        self._noted.append(("sleep",))

    async def wake(self) -> None:
        """Note the call."""
        self._noted.append(("wake",))

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        """Return what can only come of both arguments."""
        return [token + temperature for token in input_ids]

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Note the call."""
        self._noted.append(("load_adapter", name, isinstance(path, Path), str(path), version))

    async def unload_adapter(self, name: str) -> None:
        """Note the call."""
        self._noted.append(("unload_adapter", name))

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Call every tool. Any: JSON."""
        return ToolParse(content=text, calls=[ToolCall(name=tool["name"], arguments="{}") for tool in tools])


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


def _descend(calls: int) -> None:
    if calls == 0:
        _at_the_bottom()
    _descend(calls - 1)


def _at_the_bottom() -> None:
    raise ArithmeticError("deep inside of an engine")


def _write(*lines: str, stream: str = "stdout", end: str = "\n", flush: bool = True) -> None:
    out = sys.stderr if stream == "stderr" else sys.stdout
    for line in lines:
        out.write(f"{line}{end}")
    if flush:
        out.flush()
