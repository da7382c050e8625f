"""One worker of this machine: its process, its calls and its pulse, and what they say about its state.

Knows: how the three together become a `WorkerStatus`, and that a lost worker's calls fail at once.
Does not know: the other workers of its gang (`local_scheduler`).
"""

from __future__ import annotations

import zmq

from areal_core.contract.errors import ResourceError, WorkerDied
from areal_core.contract.scheduler import WorkerState, WorkerStatus
from areal_core.runtime.bootstrap import Ready, ready_from
from areal_core.runtime.channel import KeyPair, connected
from areal_core.runtime.heartbeat import Pulse
from areal_core.runtime.process import WorkerProcess
from areal_core.runtime.rpc import RpcClient
from areal_core.runtime.supervise import failure

Context = zmq.Context[zmq.Socket[bytes]]
_REAP_S = 2.0


class LocalWorker:
    """Starting at first; running once it answered; silent or ended when it is not what it was."""

    def __init__(self, role: str, rank: int, process: WorkerProcess, public_key: str) -> None:
        self.id = f"{role}/{rank}"
        self.process = process
        self._role = role
        self._rank = rank
        self._public_key = public_key
        self._state = WorkerState.STARTING
        self._tail: tuple[str, ...] = ()
        self._ready: Ready | None = None
        self._client: RpcClient | None = None
        self._pulse: Pulse | None = None
