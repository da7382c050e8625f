"""A sender and a vLLM worker that takes a slot in its group: `transfer_ranks.py RANK WORLD FOLDER`.

Rank 0 is the controller and the sender, rank 1 what one vLLM worker does. The worker's side is ours, unchanged, over
the few classes of vLLM it is made of, written here after vLLM 0.32. AREAL_TEST_DEVICE is where both have their
tensors. Writes FOLDER/result-RANK.json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from areal_core.contract.weights import Offer
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig
from areal_torch.bucketing import buckets
from areal_torch.testing.ranks import hear, tell

DEVICE = os.environ["AREAL_TEST_DEVICE"]


class WeightTransferEngine:
    """vLLM's base class. Any: its own types throughout."""

    def __class_getitem__(cls, _: Any) -> type:
        return cls

    def __init__(self, device: torch.device, model: nn.Module) -> None:
        self.device, self.model, self.model_config = device, model, None
        self.parallel_config = SimpleNamespace(rank=0)
        self.waited = 0

    def parse_init_info(self, given: dict[str, Any]) -> Any:
        """Return the typed information."""
        return self.init_info_cls(**given)  # type: ignore[attr-defined]

    def parse_update_info(self, given: dict[str, Any]) -> Any:
        """Return the typed information."""
        return self.update_info_cls(**given)  # type: ignore[attr-defined]

    def update_weights(self, given: dict[str, Any]) -> None:
        """Receive, then wait for the device."""
        self.receive_weights(self.parse_update_info(given))  # type: ignore[attr-defined]
        torch.accelerator.synchronize()
        self.waited += 1


class Model(nn.Module):
    """Two weights, loaded by name in place, as vLLM's models are."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(4, 6))
        self.two = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Copy what comes; return the names."""
        loaded = set()
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)
            loaded.add(name)
        return loaded


def stand_in() -> None:
    """Put the modules of vLLM that the worker's side imports in place."""

    def module(name: str, **content: Any) -> None:
        made: Any = ModuleType(name)  # Any: it gets attributes
        vars(made).update(content)
        sys.modules[name] = made

    def nothing(*_: Any) -> None:
        return None

    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer", "vllm.model_executor"):
        module(name)
    module("vllm.model_executor.model_loader")
    module("vllm.model_executor.layers")
    module(
        "vllm.distributed.weight_transfer.base",
        WeightTransferEngine=WeightTransferEngine,
        WeightTransferInitInfo=object,
        WeightTransferUpdateInfo=object,
    )
    module(
        "vllm.model_executor.model_loader.reload",
        initialize_layerwise_reload=nothing,
        finalize_layerwise_reload=nothing,
    )
    module("vllm.model_executor.layers.vocab_parallel_embedding", ParallelLMHead=type("ParallelLMHead", (), {}))


def weights(version: int) -> dict[str, Tensor]:
    """Return what is sent, on the device."""
    made = {"one": torch.arange(24.0).reshape(4, 6) + version, "two": torch.full((5,), 0.5 * version).bfloat16()}
    return {name: tensor.to(DEVICE) for name, tensor in made.items()}


def send(folder: Path) -> dict[str, Any]:
    """Send two versions; return their fingerprints and the backend."""
    transport = CollectiveTransport(CollectiveConfig(timeout_s=30.0))
    out: dict[str, Any] = {}
    for version in (1, 2):
        offer = transport.open(version)
        (own,) = transport.expect(offer, ("rollout/0",))
        tell(folder, f"offer-{version}", attrs.asdict(own))
        sink = transport.sink(offer)
        sink.begin(manifest_of(weights(version).items(), version=version))
        for bucket in buckets(weights(version).items(), sink.bucket_bytes):
            sink.write(bucket)
        prints = dict(sink.finish().fingerprints)
        kept = transport.cache._kept
        assert kept is not None
        out[str(version)] = {"fingerprints": prints, "backend": kept.slot.backend, "group": kept.slot.group_name}
        hear(folder, f"taken-{version}")
        transport.release(offer)
    transport.close()
    return out


def serve(folder: Path) -> dict[str, Any]:
    """Take both versions into a model on the device; return what its parameters are."""
    stand_in()
    from areal_vllm.inside.transfer import GroupWeightTransferEngine
    from areal_vllm.inside.worker import WorkerExtension, place

    model = Model().to(DEVICE)
    engine: Any = GroupWeightTransferEngine(torch.device(DEVICE), model)  # Any: its base is the one above
    worker = WorkerExtension()
    worker.weight_transfer_engine = engine
    transport, held = CollectiveTransport(), ""
    out: dict[str, Any] = {"place": place()}
    for version in (1, 2):
        source = transport.source(Offer(**hear(folder, f"offer-{version}")))
        specs = source.manifest.tensors
        slot = source.take_slot(1, device=place(), held=held, signs=True)
        if slot.group_name != held:
            engine.init_transfer_engine(engine.parse_init_info(attrs.asdict(slot)))
            held = slot.group_name
        engine.start_weight_update()
        engine.update_weights(
            {
                "names": [spec.name for spec in specs],
                "dtypes": [spec.dtype for spec in specs],
                "shapes": [list(spec.shape) for spec in specs],
            }
        )
        source.wait_finished()
        engine.finish_weight_update()
        source.close()
        found = {name: fingerprint(parameter.detach()) for name, parameter in model.named_parameters()}
        out[str(version)] = {"model": found, "received": worker.areal_received(), "group": engine._group.device.type}
        tell(folder, f"taken-{version}", True)
    out["waited"] = engine.waited
    engine.shutdown()
    transport.close()
    return out


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[3])
    tell(folder, f"result-{rank}.json", send(folder) if rank == 0 else serve(folder))
    sys.stdout.flush()
    os._exit(0)
