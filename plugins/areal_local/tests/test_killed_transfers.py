"""Whoever is killed while weights travel: nothing of it is readable, and nothing stays."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch

from areal_core.contract.errors import (
    WeightSyncError,
)
from areal_core.contract.weights import Offer
from areal_core.weights.coverage import compare
from areal_local.transports.config import DiskConfig, ShmConfig
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_torch.owned_folder import OwnedFolder

from .transfers import KINDS, Make, receipt_for, receive, send, some_tensors
from .writer import start_writer


def kind_of(offer: Offer) -> str:
    if offer.transport == "disk":
        return "disk"
    return "memory" if str(offer.location["path"]).startswith("/proc/") else "file"


def test_another_process_can_send(make: Make, tmp_path: Path) -> None:
    """The trainer writes in a process of its own, ends, and its bytes are still there to read."""
    transport = make()
    offer = transport.open(1)

    start_writer(kind_of(offer), tmp_path, "finishes", offer).end(kill=False)

    assert torch.equal(receive(transport, offer)["w"], torch.arange(100_000.0))


def test_a_killed_sender_leaves_nothing_readable(make: Make, tmp_path: Path) -> None:
    """kill -9 of the trainer in the middle of a transfer: unreadable, and gone with the release."""
    transport = make()
    offer = transport.open(1)
    start_writer(kind_of(offer), tmp_path, "dies", offer).end(kill=True)

    with pytest.raises(WeightSyncError):
        transport.source(offer)
    transport.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_killed_controller_left_is_gone(kind: str, tmp_path: Path) -> None:
    """kill -9 of the controller: memory vanishes by itself, files with the next transport on the machine."""
    killed = start_writer(kind, tmp_path, "controller")
    killed.end(kill=True)
    if kind == "memory":
        assert list(tmp_path.iterdir()) == []

    config = DiskConfig(root=str(tmp_path)) if kind == "disk" else ShmConfig(backing=kind, folder=str(tmp_path))
    transport = DiskTransport(config) if isinstance(config, DiskConfig) else ShmTransport(config)
    transport.open(1)
    alive = list(tmp_path.iterdir())
    transport.close()

    assert len(alive) == (0 if kind == "memory" else 1)
    assert list(tmp_path.iterdir()) == []
    assert list(Path("/dev/shm").glob(f"areal-*-{killed.process.pid}-*")) == []


@pytest.mark.parametrize("kind", ["disk", "file"])
def test_a_worker_tidies_up_after_every_controller_it_outlived(kind: str, tmp_path: Path) -> None:
    """A replica that was kept while trainers started again has had several, each with a folder of its own."""
    controllers = [
        DiskTransport(DiskConfig(root=str(tmp_path)))
        if kind == "disk"
        else ShmTransport(ShmConfig(backing="file", folder=str(tmp_path)))
        for _ in range(2)
    ]
    worker = type(controllers[0])()
    for controller in controllers:
        offer = controller.open(1)
        send(worker, offer, some_tensors())
    assert len(list(tmp_path.iterdir())) == 2
    for controller in controllers:
        owned = controller.folder if isinstance(controller, DiskTransport) else controller._folder
        assert owned is not None
        os.close(owned.lock)  # as when the process is killed
        owned.lock = -1
    del worker
    gc.collect()

    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_what_a_killed_one_left_though_it_makes_no_file_itself(tmp_path: Path) -> None:
    """A run in memory after one in files; a folder of a live run, and what is not ours, stay."""
    start_writer("file", tmp_path, "controller").end(kill=True)
    (orphan,) = tmp_path.iterdir()
    living = OwnedFolder(tmp_path, "areal-other")
    live = living.path.rename(tmp_path / "areal-shm-live")
    (tmp_path / "areal-shm-strange").mkdir()

    transport = ShmTransport(ShmConfig(backing="memory", folder=str(tmp_path)))
    transport.open(1)
    transport.close()

    assert not orphan.exists()
    assert sorted(tmp_path.iterdir()) == [live, tmp_path / "areal-shm-strange"]
    os.close(living.lock)


def test_a_live_controllers_files_are_left_alone(make: Make, tmp_path: Path) -> None:
    """A second run on the machine sweeps the dead, never the living."""
    transport = make()
    offer = transport.open(1)
    sent = send(transport, offer, some_tensors())

    other = make()
    other.open(1)

    compare(sent, receipt_for(receive(transport, offer), 1), "replica")
