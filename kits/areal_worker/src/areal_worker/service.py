"""What a worker process does with a call: an explicit table of methods around one contract engine.

Public, for schedulers.

Knows: which methods travel, how their arguments become what the contract takes, and in which thread they run.
Does not know: sockets or processes (`rpc`, `worker_main`), or any engine by name: the registry finds it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from attrs import Factory, frozen

from areal_core.contract.errors import CapabilityError, WorkerError
from areal_core.contract.inference import InferenceEngine, InferenceSpec, PauseMode
from areal_core.contract.optional import SupportsBackgroundState, SupportsOffload
from areal_core.contract.train import (
    CANDIDATES,
    EngineInfo,
    Objective,
    ObjectiveSpec,
    Output,
    RankContext,
    TrainEngine,
    TrainSpec,
)
from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_core.plugins.extensions import extension
from areal_core.plugins.registry import Registry, default_registry
from areal_core.worker.rendezvous import init_method

T = TypeVar("T")


@frozen(kw_only=True)
class Place:
    """What a host is told before any call. `imports` are the user's files; `worker` is `<role>/<rank>`."""

    worker: str
    backend: str
    imports: tuple[str, ...] = ()
    registry: Registry = Factory(default_registry)
    folder: str = ""  # if any, the workers of this host share it, and no other user can enter it


class Host(Protocol):
    """The server's handler, and its end."""

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Run one method. Any: whatever the contract's method takes and returns."""

    async def close(self) -> None:
        """Close the engine, if there is one. Idempotent."""


class TrainHost:
    """One rank. Every engine method runs on one thread, in the order the calls arrived.

    Engines keep state per thread (CUDA streams, default dtypes, process groups), and the
    event loop has to stay responsive during a step of minutes.
    """

    def __init__(self, place: Place) -> None:
        self._parts = _Parts(place)
        self.engine: TrainEngine | None = None
        self._objective: tuple[ObjectiveSpec, Objective] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="areal-train")
        self._methods: Mapping[str, Callable[..., Any]] = {  # Any: one signature per method
            "start": self._start,
            "rendezvous": self._rendezvous,
            "train_step": lambda batch, spec: self._started.train_step(batch, self._objective_of(spec)),
            "forward": self._forward,
            "send_weights": self._send_weights,
            "save_weights": lambda path: self._started.save_weights(Path(path)),
            "save_state": lambda path: self._started.save_state(Path(path)),
            "load_state": lambda path: self._started.load_state(Path(path)),
            "begin_state": lambda path: self._in_background.begin_state(Path(path)),
            "state_written": lambda: self._in_background.state_written(),
            "finish_state": lambda: self._in_background.finish_state(),
            "set_version": self._set_version,
            "offload": lambda: self._offloading.offload(),
            "onload": lambda: self._offloading.onload(),
            "close": self._close,
        }

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Queue one method for the engine's thread and wait for it."""
        run = find_method(self._methods, method, self._parts.place)
        return await asyncio.get_running_loop().run_in_executor(self._thread, run, *args)

    async def close(self) -> None:
        """Close the engine after the calls already queued. Idempotent."""
        await self.call("close", ())

    @property
    def _started(self) -> TrainEngine:
        return _started(self.engine, self._parts.place)

    @property
    def _offloading(self) -> SupportsOffload:
        if isinstance(self._started, SupportsOffload):
            return self._started
        raise self._unable("give its device memory back", "memory.offload", "")

    @property
    def _in_background(self) -> SupportsBackgroundState:
        if isinstance(self._started, SupportsBackgroundState):
            return self._started
        raise self._unable(
            "write a state while it trains", "checkpoint.background", "set checkpoint.background to false, or "
        )

    def _unable(self, what: str, claim: str, instead: str) -> CapabilityError:
        why, fix = f"it does not claim `{claim}`", f"{instead}use a backend that claims it (`areal backends`)"
        return CapabilityError(f"train backend {self._parts.place.backend!r} cannot {what}", why=why, fix=fix)

    def _rendezvous(self, host: str, on_one_host: bool = False) -> str:
        folder = self._parts.place.folder  # a port is open to every user of the machine, a file there is not
        return f"file://{folder}/ranks-{secrets.token_hex(8)}" if folder and on_one_host else init_method(host)

    def _start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        _not_started(self.engine, self._parts.place)
        engine: TrainEngine = self._parts.build("train", self._parts.place.backend, spec.options)
        self.engine = engine
        return engine.start(spec, rank)

    def _forward(self, batch: Any, names: Sequence[str]) -> Any:  # Any: Batch, whose module imports torch
        from areal_core.contract.batch import Batch

        outputs = frozenset(Output(name) for name in names if name != CANDIDATES)  # which come back beside an output
        columns = self._started.forward(batch, outputs).flat()
        return Batch.of({name: columns[f"tokens/{name}"] for name in names}, {}, batch.lengths)

    def _send_weights(self, offer: Offer | None, version: int) -> Receipt | None:
        if offer is None:
            return self._started.send_weights(None, version)
        sink = self._parts.transport(offer.transport).sink(offer)
        try:
            return self._started.send_weights(sink, version)
        except BaseException:
            sink.abort()
            raise

    def _set_version(self, version: int) -> None:
        self._started.version = version

    def _objective_of(self, spec: ObjectiveSpec) -> Objective:
        if self._objective is None or self._objective[0] != spec:
            built: Objective = self._parts.build("objective", spec.name, spec.config)
            self._objective = (spec, built)
        return self._objective[1]

    def _close(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()
        self._parts.close()


class InferenceHost:
    """One replica, or its part on this host.

    The engine's coroutines run in the worker's event loop, as many at once as are called.
    """

    def __init__(self, place: Place, engine: InferenceEngine | None = None) -> None:
        """Host an engine that `start` will build, or one that was started already."""
        self._parts = _Parts(place)
        self.engine = engine
        self._methods: Mapping[str, Callable[..., Awaitable[Any]]] = {  # Any: one signature per method
            "start": self._start,
            "rendezvous": self._rendezvous,
            "generate": lambda request: self._started.generate(request),
            "pause": lambda mode: self._started.pause(PauseMode(mode)),
            "resume": lambda: self._started.resume(),
            "receive_weights": self._receive_weights,
            "commit_weights": lambda version: self._started.commit_weights(version),
            "abort_weights": lambda: self._started.abort_weights(),
            "status": lambda: self._started.status(),
            "sleep": lambda: self._optional("memory.sleep", "sleep")(),
            "wake": lambda: self._optional("memory.sleep", "wake")(),
            "score": self._score,
            "parse_tool_calls": lambda text, tools: self._optional("tools.parse", "parse_tool_calls")(text, tools),
            "load_adapter": self._load_adapter,
            "unload_adapter": lambda name: self._optional("lora.adapters", "unload_adapter")(name),
            "close": self.close,
        }

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Run one method; cancelling it cancels the engine's coroutine."""
        return await find_method(self._methods, method, self._parts.place)(*args)

    async def close(self) -> None:
        """Close the engine. Idempotent."""
        engine, self.engine = self.engine, None
        if engine is not None:
            await engine.close()
        self._parts.close()

    def let_go(self) -> InferenceEngine | None:
        """Return the engine as it is, None before `start` and after `close`, and host it no more."""
        engine, self.engine = self.engine, None
        self._parts.close()
        return engine

    @property
    def _started(self) -> InferenceEngine:
        return _started(self.engine, self._parts.place)

    async def _rendezvous(self, host: str) -> str:
        return init_method(host)

    async def _start(self, spec: InferenceSpec) -> EngineInfo:
        _not_started(self.engine, self._parts.place)
        engine: InferenceEngine = self._parts.build("infer", self._parts.place.backend, spec.options)
        self.engine = engine
        return await engine.start(spec)

    async def _receive_weights(self, offer: Offer, version: int) -> Receipt:
        engine = self._started
        source = await asyncio.to_thread(self._parts.transport(offer.transport).source, offer)
        try:
            return await engine.receive_weights(source, version)
        finally:
            source.close()

    async def _score(self, input_ids: Sequence[int], temperature: float) -> list[float]:
        return list(await self._optional("scoring", "score")(input_ids, temperature))

    async def _load_adapter(self, name: str, path: str, version: int) -> None:
        await self._optional("lora.adapters", "load_adapter")(name, Path(path), version)

    def _optional(self, claim: str, method: str) -> Callable[..., Awaitable[Any]]:  # Any: one signature per method
        """Return a method of an optional ability.

        Raises:
            CapabilityError: the engine has no such method.
        """
        found: Callable[..., Awaitable[Any]] | None = getattr(self._started, method, None)
        if found is None:
            raise CapabilityError(
                f"{self._parts.place.worker} cannot {method}",
                why=f"inference backend {self._parts.place.backend!r} has no {claim!r}",
                fix=f"choose a backend that claims {claim}: areal backends --role infer",
            )
        return found


class _Hosts(Mapping[str, Callable[[Place], Host]]):
    """Those of engines, and the one of workflows if a package offers it."""

    _engines: Mapping[str, Callable[[Place], Host]] = {"train": TrainHost, "infer": InferenceHost}

    def _known(self) -> Mapping[str, Callable[[Place], Host]]:
        offered = extension("workflow_host")
        return {**self._engines, **({"workflow": offered} if offered else {})}

    def __getitem__(self, role: str) -> Callable[[Place], Host]:
        return self._engines.get(role) or self._known()[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


HOSTS = _Hosts()
"""Engine role -> what hosts an engine, or workflows, of that role."""


class _Parts:
    """Builds what calls name, in this process, from this process's own registry."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._imported = False
        self._transports: dict[str, WeightTransport] = {}

    def build(self, role: str, name: str, options: Mapping[str, Any]) -> Any:
        """Build a plugin. Any: which protocol it has follows from the role."""
        if not self._imported:
            for path in self.place.imports:
                self.place.registry.add_file(path)
            self._imported = True
        return self.place.registry.build(role, name, options)

    def transport(self, name: str) -> WeightTransport:
        """Return this process's end of a transport, made on first use."""
        if name not in self._transports:
            self._transports[name] = self.build("transport", name, {})
        return self._transports[name]

    def close(self) -> None:
        """Close the transports."""
        while self._transports:
            self._transports.popitem()[1].close()


def find_method(methods: Mapping[str, T], method: str, place: Place) -> T:
    """Return a method of a table. Raises WorkerError: it has none of that name."""
    if method not in methods:
        raise WorkerError(
            f"{place.worker} has no method {method!r}",
            why=f"methods are {', '.join(methods)}",
            fix="check the spelling",
        )
    return methods[method]


def _started(engine: T | None, place: Place) -> T:
    if engine is None:
        raise WorkerError(
            f"{place.worker} has no engine", why="it was not started, or was closed", fix="call start first"
        )
    return engine


def _not_started(engine: object | None, place: Place) -> None:
    if engine is not None:
        raise WorkerError(f"{place.worker} was started already", why="'start' is called once per worker process")
