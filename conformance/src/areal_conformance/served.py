"""What backends with servers tell the suite alike: weights that workers read back, harm to a server's processes.

Knows: engines of `areal_serving`.
Does not know: any server's routes, or any check.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from attrs import define, frozen

from areal_conformance.adapter import Fault

if TYPE_CHECKING:
    from torch import Tensor

    from areal_serving.engine import ServedEngine

_TIMEOUT_S = 60.0


@frozen
class ServerWeights:
    """Has a server's workers write the weights they compute with to a file.

    Example: ServerWeights(engine, "/collective_rpc", lambda path: {"method": "write", "kwargs": {"path": str(path)}})
    """

    engine: ServedEngine
    route: str
    body: Callable[[Path], Mapping[str, object]]

    def tensors(self) -> Mapping[str, Tensor]:
        """Return them under their Hugging Face names."""
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory(prefix="areal-witness-") as folder:
            path = Path(folder, "weights.safetensors")
            self._ask(self.body(path))
            return {name: tensor.clone() for name, tensor in load_file(path).items()}

    def _ask(self, body: Mapping[str, object]) -> None:
        """Ask without the event loop, which waits for this."""
        api = self.engine.serving
        request = urllib.request.Request(
            f"{api.url}{self.route}", data=json.dumps(body).encode(), headers=dict(api.headers), method="POST"
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read()


def server_faults(engine: ServedEngine) -> Mapping[str, Fault]:
    """Return a server that ends, and one that stands still for a while."""
    return {
        "server_killed": _Signal(engine, signal.SIGKILL),
        "server_stopped": _Signal(engine, signal.SIGSTOP, signal.SIGCONT),
    }


@define
class _Signal:
    """Sends every process of the server a signal, and what undoes it."""

    engine: ServedEngine
    harm: signal.Signals
    cure: signal.Signals | None = None
    num_hit: int = 0

    def inject(self) -> None:
        """Send it to the server as it is."""
        self._send(self.harm)

    def heal(self) -> None:
        """Undo it, where it can be undone."""
        if self.cure is not None:
            self._send(self.cure)

    def fired(self) -> int:
        """Return how many processes it reached."""
        return self.num_hit

    def _send(self, number: signal.Signals) -> None:
        watchdog_id = self.engine.running.server.process_id
        assert watchdog_id is not None, "the server is one of ours"
        for process in psutil.Process(watchdog_id).children(recursive=True):
            os.kill(process.pid, number)
            self.num_hit += number is self.harm
