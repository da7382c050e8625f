"""What the vLLM backend tells the conformance suite about itself.

Knows: how to read the weights a server computes with, and how to do its server harm.
Does not know: any check.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from attrs import define, frozen

from areal_conformance.adapter import Adapter, Fault, Witness

if TYPE_CHECKING:
    from torch import Tensor

    from areal_vllm.engine import VLLMEngine

_TIMEOUT_S = 60.0


@frozen
class ServerWeights:
    """Has the server's worker read its own layers back into a file."""

    engine: VLLMEngine

    def tensors(self) -> Mapping[str, Tensor]:
        """Return them under their Hugging Face names."""
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory(prefix="areal-witness-") as folder:
            path = Path(folder, "weights.safetensors")
            self._ask({"method": "areal_write_weights", "kwargs": {"path": str(path)}})
            return {name: tensor.clone() for name, tensor in load_file(path).items()}

    def _ask(self, body: Mapping[str, object]) -> None:
        """Ask without the event loop, which waits for this."""
        api = self.engine.serving
        request = urllib.request.Request(
            f"{api.url}/collective_rpc", data=json.dumps(body).encode(), headers=api._headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read()


@define
class _Signal:
    """Sends every process of the server a signal, and what undoes it."""

    engine: VLLMEngine
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
        up = self.engine._require().server._up
        assert up is not None and up.process is not None, "the server is one of ours"
        for process in psutil.Process(up.process.pid).children(recursive=True):
            os.kill(process.pid, number)
            self.num_hit += number is self.harm


def _witness(engine: VLLMEngine) -> Witness:
    return ServerWeights(engine)


def _faults(engine: VLLMEngine) -> Mapping[str, Fault]:
    return {
        "server_killed": _Signal(engine, signal.SIGKILL),
        "server_stopped": _Signal(engine, signal.SIGSTOP, signal.SIGCONT),
    }


ADAPTER = Adapter(
    witness=_witness,
    faults=_faults,
    models=("qwen3", "llama", "qwen3_moe"),
    tiny={"head_dim": 32},  # the smallest heads vLLM's CPU kernel takes
    dtypes=("float32", "bfloat16"),
    layouts=("t2",),
    options={
        "": {"kv_cache_gib": 0.25, "tool_parser": "hermes"},
        "weights.kv_recomputed": {"kv_on_update": "recompute"},
        "memory.sleep": {"sleep": True},
        "lora.adapters": {"max_adapters": 4, "max_adapter_rank": 16},
    },
    patience=12.0,
    slow_start=True,
)
