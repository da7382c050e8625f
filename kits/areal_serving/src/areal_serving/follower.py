"""A part of a server over several hosts that does not lead: a process that serves nobody, weights staged beside it.

Its engine's ranks are told by the leader what to load, under names that are the same on every host (`staging`).

Knows: the process, which version its ranks may be told to load next and which they have.
Does not know: routes; nobody can ask a part that does not lead.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path

from areal_core.contract.errors import CapabilityError, GenerationFailed
from areal_core.contract.inference import EngineStatus, InferenceSpec, ReplicaPart
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_serving.arrivals import Arrivals, not_held
from areal_serving.dialect import Dialect, Launch, ServerFacts
from areal_serving.model import ServedModel
from areal_serving.server import ServerProcess, free_port
from areal_serving.staging import StagedWeights, Staging
from areal_torch.owned_folder import OwnedFolder

END_S = 5.0
"""A process that was asked to end is killed after so long."""


class Follower:
    """Starts at construction, and is over when its process is: nothing is started again.

    Raises:
        WorkerError: the command cannot be run.
    """

    def __init__(self, dialect: Dialect, spec: InferenceSpec, part: ReplicaPart, *, model: ServedModel, python: str):
        self._dialect, self._spec, self._part, self._model = dialect, spec, part, model
        self._folder = OwnedFolder(Path(tempfile.gettempdir()), f"areal-{dialect.name}")
        self._arrivals = Arrivals(Staging(model, self._folder.path, alike=True), lambda: None)
        self._served: StagedWeights | None = None
        self.version = 0
        launch = Launch(
            spec=spec, python=python, port=free_port(), key=secrets.token_urlsafe(32), folder=self._folder.path
        )
        try:
            self._process = ServerProcess(dialect.name, dialect.command(launch), folder=self._folder.path)
        except BaseException:
            self._folder.close()
            raise

    @property
    def info(self) -> EngineInfo:
        """Return what the model folder says; the leader asks the server."""
        facts = ServerFacts(engine_version="", context_length=self._spec.context_length or self._model.context_length)
        return self._model.info(self._dialect.name, facts, self._spec)

    def refused(self) -> CapabilityError:
        """Return the error of every request."""
        return CapabilityError(
            f"part {self._part.rank} of a replica on {self._part.num_hosts} hosts takes no requests",
            why="part 0 leads it",
            fix="send the request there",
        )

    async def receive(self, source: WeightSource, version: int) -> Receipt:
        """Stage one version, for the ranks of this host to find."""
        self.check()
        return await self._arrivals.receive(source, version, served=self.version)

    def commit(self, version: int) -> None:
        """Take note that the leader had the ranks load what is held.

        Raises:
            WeightSyncError: another version, or none, is held.
        """
        held = self._arrivals.held
        if held is None or held.version != version:
            if version == self.version:
                return
            raise not_held(held, version)
        self._arrivals.held = None
        before, self._served, self.version = self._served, held, version
        if before is not None:
            before.close()

    def abort(self) -> None:
        """Drop what is held and what arrives. Idempotent."""
        self._arrivals.abort()

    def status(self) -> EngineStatus:
        """Return a snapshot; requests are counted by the leader."""
        self.check()
        return EngineStatus(version=self.version, num_running=0, num_waiting=0, paused=False)

    def check(self) -> None:
        """Raise GenerationFailed, with its last words, if the process has ended."""
        code = self._process.exit_code()
        if code is not None:
            raise GenerationFailed(
                f"part {self._part.rank} of the {self._dialect.name} server ended with code {code}",
                why=self._process.tail(),
                fix="read its output in the worker's log",
            )

    async def close(self) -> None:
        """End the process and free everything. Once."""
        await self._process.end(END_S)
        self._arrivals.close()
        if self._served is not None:
            self._served.close()
        await asyncio.to_thread(self._folder.close)
