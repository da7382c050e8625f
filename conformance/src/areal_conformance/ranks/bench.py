"""What a program is given on its rank: the target found by its locator, engines on all ranks or on this one alone.

    def program(bench: RankBench, layout: dict[str, int]) -> dict[str, Any]:
        with bench.engine(layout=layout) as engine:
            ...
        if bench.rank == 0:
            with bench.by_itself(), bench.engine() as engine:    # one rank, to compare with
                ...

Knows: how ranks of one program meet, beside the engine's own collectives.
Does not know: what is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_conformance.adapter import Case
from areal_conformance.benches.train import TrainBench
from areal_conformance.rank_pool import wire
from areal_conformance.target import Locator, locate
from areal_core.contract.train import OptimizerSpec, RankContext, TrainEngine
from areal_torch.testing.models import make_tiny_model

OPTIMIZER = OptimizerSpec(lr=1e-2, weight_decay=0.1, eps=1e-3, max_grad_norm=0.0)
"""`eps` is large beside the rounding of a gradient, and small beside the gradient: Adam then neither divides noise by
noise, so that weights can be compared closely, nor forgets the gradient's scale, so that a wrong one shows."""


class RankBench(TrainBench):
    """A train bench that is one rank of several. Lives for one program; `kept` lives as long as its process."""

    def __init__(self, connection: socket.socket, order: dict[str, Any], kept: dict[str, Any]) -> None:
        locator = Locator(**order["locator"])
        key = json.dumps(order["locator"], sort_keys=True)
        if kept.get("locator") != key:
            kept.clear()
            kept.update(locator=key, target=locate(locator))
        super().__init__(kept["target"])
        self._root.rmdir()
        self._root = Path(order["folder"])
        self.rank: int = order["rank"]
        self.world_size: int = order["world_size"]
        self.kept = kept
        self.timeout_s = 60.0
        self._shared = Path(order["shared"])
        self._connection = connection
        self._alone = False

    @property
    def folder(self) -> Path:
        """Return the folder of the check, shared by all ranks."""
        return self._root

    @property
    def shared_folder(self) -> Path:
        """Return the folder of the session, shared by all ranks."""
        return self._shared

    def share(self, value: Any = None) -> list[Any]:
        """Wait for every rank to come here; return what each one gave, in rank order. Any: plain json.

        None stands for a rank that has died.
        """
        wire.send(self._connection, {"share": value})
        answer = wire.receive(self._connection)
        if "abandoned" in answer:
            raise wire.Abandoned(f"rank {self.rank} waits in `share`, but {answer['abandoned']}")
        shared: list[Any] = answer["shared"]
        return shared

    def model(self, **arguments: Any) -> Path:
        """Return a tiny model folder, made once per session, by whichever rank comes first."""
        wanted = {"kind": self.target.adapter.models[0], **arguments}
        name = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:12]
        folder = self._shared / f"ranks-{name}"
        if not folder.exists():
            mine = self._shared / f"ranks-{name}.{os.getpid()}"
            make_tiny_model(mine, **wanted)
            with contextlib.suppress(OSError):  # another rank was quicker; the bytes are the same
                mine.rename(folder)
        return folder

    @contextlib.contextmanager
    def by_itself(self) -> Iterator[None]:
        """Let engines of the block be of one rank: this one."""
        rank, world_size = self.rank, self.world_size
        self.rank, self.world_size, self._alone = 0, 1, True
        try:
            yield
        finally:
            self.rank, self.world_size, self._alone = rank, world_size, False

    def rank_context(self, timeout_s: float = 0.0) -> RankContext:
        """As for every bench, with the program's timeout."""
        return super().rank_context(timeout_s or self.timeout_s)

    def rendezvous(self) -> str:
        """Return one address for all ranks, which come here together."""
        address = super().rendezvous() if self.rank == 0 else ""
        return address if self._alone else str(self.share(address)[0])

    def case(self, *claims: str, rank: int = 0, world_size: int = 1, **options: Any) -> Case:
        """As for every bench, with this rank's place."""
        return super().case(*claims, rank=self.rank, world_size=self.world_size, **options)

    @contextlib.contextmanager
    def engine(self, *claims: str, model: Path | None = None, **fields: Any) -> Iterator[TrainEngine]:
        """Start an engine on every rank; closed after the block.

        After an error it is not: closing may wait for the other ranks, and the processes are thrown away anyway.
        """
        engine: TrainEngine = self.build(*claims)
        if self._alone:
            fields["layout"] = {"d": 1}
        self.info = engine.start(
            self.spec(*claims, model=model, **{"optimizer": OPTIMIZER, **fields}), self.rank_context()
        )
        yield engine
        engine.close()

    def is_clean(self) -> bool:
        """Tell whether this process can run another program: no engine left its process group behind."""
        distributed: Any = sys.modules.get("torch.distributed")  # Any: a module, looked up so as not to import it
        return distributed is None or not (distributed.is_available() and distributed.is_initialized())
