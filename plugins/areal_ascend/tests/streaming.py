"""Stream a trainer's weights from one NPU to another: `streaming.py RANK WORLD FOLDER`.

Rank 0 is the controller and a trainer of one rank; rank 1 reads what it sends, as the worker of an inference engine
does. Each sees the NPUs its environment names, as the scheduler has it. Writes FOLDER/result-RANK.json.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import attrs
import torch

from areal_ascend.engine import AscendEngine
from areal_core.contract.errors import ArealError
from areal_core.contract.train import OptimizerSpec, RankContext, TrainSpec
from areal_core.contract.weights import Offer
from areal_core.weights.tensors import fingerprint
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig
from areal_torch.collective.group import place
from areal_torch.testing.batches import make_batch
from areal_torch.testing.objectives import PolicyGradient
from areal_torch.testing.ranks import hear, tell

VERSIONS = {1: "auto", 2: "auto", 3: "gloo", 4: "hccl"}
"""What is asked for, version by version; the group of the first is there for the second."""


def train(folder: Path) -> dict[str, Any]:
    """Train a step a version, send the weights, and return their fingerprints and where the group was."""
    engine = AscendEngine()
    context = RankContext(
        rank=0,
        world_size=1,
        local_rank=0,
        device="npu",
        init_method=f"file://{folder / 'store'}",
        timeout_s=60,
    )
    optimizer = OptimizerSpec(lr=1e-2)
    engine.start(TrainSpec(role="actor", model_path=str(folder.parent / "model"), optimizer=optimizer), context)
    out: dict[str, Any] = {"place": place(), "versions": {}}
    transports: dict[str, CollectiveTransport] = {}
    for version, backend in VERSIONS.items():
        batch = make_batch([(2, 3), (1, 5)])
        engine.train_step(batch.with_tokens(advantages=torch.ones(batch.num_tokens)), PolicyGradient())
        config = CollectiveConfig(backend=backend, timeout_s=30.0)
        transport = transports.setdefault(backend, CollectiveTransport(config))
        offer = transport.open(version)
        (own,) = transport.expect(offer, ("rollout/0",))
        tell(folder, f"offer-{version}", attrs.asdict(own))
        out["versions"][version] = sent(engine, transport, offer)
        hear(folder, f"read-{version}")
        transport.release(offer)
    for transport in transports.values():
        transport.close()
    engine.close()
    return out


def sent(engine: AscendEngine, transport: CollectiveTransport, offer: Offer) -> dict[str, Any]:
    """Send once; return what arrived by the sender's account, or the error."""
    try:
        receipt = engine.send_weights(transport.sink(offer), offer.version)
    except ArealError as error:
        return {"error": str(error)}
    assert receipt is not None
    kept = transport.cache._kept
    assert kept is not None
    group = {"name": kept.slot.group_name, "backend": kept.slot.backend, "device": kept.device.type}
    return {"fingerprints": dict(receipt.fingerprints), "group": group}


def read(folder: Path) -> dict[str, Any]:
    """Take every version; return its fingerprints as read here."""
    transport = CollectiveTransport()
    out: dict[str, Any] = {"place": place(), "versions": {}}
    for version in VERSIONS:
        source = transport.source(Offer(**hear(folder, f"offer-{version}")))
        try:
            arrived = {name: fingerprint(tensor) for bucket in source.buckets() for name, tensor in bucket.items()}
            out["versions"][version] = {"fingerprints": arrived}
        except ArealError as error:
            out["versions"][version] = {"error": str(error)}
        source.close()
        tell(folder, f"read-{version}", True)
    transport.close()
    return out


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[3])
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    tell(folder, f"result-{rank}.json", train(folder) if rank == 0 else read(folder))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
