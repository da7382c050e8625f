"""A training rank that notes its calls, and objectives it tells apart, for checks of schedulers.

Workers read this file through `Job.imports`, beside that of the other probe (`engine`), which it cannot import there.

Knows: in which order and thread its calls came, whether two were ever at work at once, and how ranks meet.
Does not know: torch, models, or any scheduler.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from areal_core.contract.train import EngineInfo, RankContext, Sum, TrainReport, TrainSpec
from areal_core.contract.weights import Receipt, WeightSink
from areal_core.plugins.claims import full
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.marks import backend, objective

NAME = "conformance_probe"
PLAIN = "conformance_probe_plain"
"""One without optional abilities."""
_INFO = {"engine": NAME, "engine_version": "1", "device": "cpu", "num_parameters": 0, "context_length": 9}
_ABILITIES = ("memory.offload", "checkpoint.background")
_HELD_S = 0.005
"""How long a call keeps its thread, so that calls which overlap meet."""


@frozen(kw_only=True)
class TrainProbeOptions:
    """What a rank does when it is started."""

    meet: bool = False
    """Find the other ranks at the address given."""
    held_s: float = 0.0
    """For how long saving weights takes."""
    loads_s: float = 0.0
    """For how long starting takes."""


@frozen(kw_only=True)
class AimOptions:
    """What tells one objective from another of its name."""

    loss: float = 0.0


@objective(NAME, config=AimOptions)
class Aim:
    """Nothing is computed with it: a step tells which one it was given."""

    def __init__(self, options: AimOptions) -> None:
        self.loss = options.loss


@objective(f"{NAME}_other", config=AimOptions)
class OtherAim(Aim):
    """One of another name, with the same options."""


@backend(Manifest(role="train", name=PLAIN, contract=(1, 2), factory="trainer:PlainProbe"), config=TrainProbeOptions)
class PlainProbe:
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
        self.note(f"version {value}")
        self._version = value

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Tell the rank it was given."""
        self.note("start")
        details = {"rank": str(rank.rank), "world_size": str(rank.world_size), "role": spec.role}
        time.sleep(self._options.loads_s)
        if self._options.meet:
            details["met"] = ",".join(map(str, sorted(_meet(rank))))
        return EngineInfo(**_INFO, data_rank=rank.rank, data_size=rank.world_size, details=details)  # type: ignore[arg-type]

    def train_step(self, batch: Any, objective: Aim) -> TrainReport:
        """Tell the objective. Any: whatever the check sends."""
        self.note("train_step")
        told = {type(objective).__name__: Sum(value=objective.loss, weight=1.0)}
        return TrainReport(
            loss=objective.loss,
            grad_norm=1.0,
            lr=1.0,
            stepped=True,
            num_microbatches=1,
            num_tokens=len(batch),
            seconds=0.0,
            metrics=told,
        )

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Return the receipt of no tensors, if there is a sink."""
        self.note(f"send {version}{'' if sink else ' to nobody'}")
        return sink.finish() if sink else None

    def save_weights(self, path: Path) -> None:
        """Note the call, and stay in it as long as told."""
        self.note(_told(path))
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
        print(f"{NAME} closed in good order", flush=True)  # noqa: T201  # the worker's log

    def note(self, call: str) -> None:
        """Take down a call, and the thread it came in."""
        self._overlapped |= self._busy
        self._busy = True
        time.sleep(_HELD_S)
        self._log.append(call)
        self._threads.add(threading.get_ident())
        self._busy = False


@backend(
    Manifest(
        role="train",
        name=NAME,
        contract=(1, 2),
        factory="trainer:TrainProbe",
        claims=dict.fromkeys(_ABILITIES, full()),
    ),
    config=TrainProbeOptions,
)
class TrainProbe(PlainProbe):
    """One with optional abilities."""

    def offload(self) -> None:
        """Note the call."""
        self.note("offload")

    def onload(self) -> None:
        """Note the call."""
        self.note("onload")

    def begin_state(self, path: Path) -> None:
        """Note the call."""
        self.note(f"begin {_told(path)}")

    def state_written(self) -> bool:
        """Note the call."""
        self.note("written")
        return False

    def finish_state(self) -> None:
        """Note the call."""
        self.note("finish")


def _told(path: Path) -> str:
    return f"{type(path).__name__.removeprefix('Posix')} {path.name}"


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
