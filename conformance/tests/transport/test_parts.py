"""The parts transport checks stand on: the second transport's key, the audit, the look at what is held."""

from __future__ import annotations

import pickle
import socket
from collections import OrderedDict
from pathlib import Path

import attrs
import pytest
import torch

from areal_conformance.benches.process import audited
from areal_conformance.benches.transport_ends import receive, send
from areal_conformance.benches.transport_footprint import flip, look, places, stores
from areal_core.contract.errors import WeightSyncError
from areal_local.transports.config import DiskConfig
from areal_local.transports.disk import DiskTransport
from areal_proof.second.transport import SecondTransport


def test_the_second_transport_turns_away_who_has_another_key() -> None:
    """The right place and the wrong key read nothing; the right key still does."""
    transport = SecondTransport()
    offer = transport.open(1)
    send(transport, offer, {"w": torch.ones(3)})
    forged = attrs.evolve(offer, location={**offer.location, "key": "00" * 32})

    with pytest.raises(WeightSyncError):
        transport.source(forged)

    assert receive(SecondTransport(), offer).tensors["w"].tolist() == [1.0, 1.0, 1.0]
    transport.close()


def test_the_audit_sees_unpickled_classes_and_bound_addresses() -> None:
    """Only what happens inside the block is recorded."""
    payload = pickle.dumps(OrderedDict(a=1))
    pickle.loads(payload)

    with audited() as audit, socket.socket() as listener:
        pickle.loads(payload)
        listener.bind(("127.0.0.1", 0))

    assert audit.unpickled == ["collections.OrderedDict"]
    assert audit.bound == ["127.0.0.1"]


def test_a_look_tells_what_is_left(tmp_path: Path) -> None:
    """A file and a descriptor made after the first look are named by the second."""
    before = look(tmp_path)
    with (tmp_path / "left").open("w"):
        left = look(tmp_path).beyond(before)

    assert "files: left" in left
    assert any(name.startswith("descriptors: ") and "left" in name for name in left)
    (tmp_path / "left").unlink()
    assert look(tmp_path).beyond(before) == []


def test_the_files_of_a_version_are_found_and_one_bit_flips(tmp_path: Path) -> None:
    """What an offer leads to is where its bytes are."""
    transport = DiskTransport(DiskConfig(root=str(tmp_path)))
    offer = transport.open(1)
    send(transport, offer, {"w": torch.full((64,), 7, dtype=torch.uint8)})

    files = [path for path in stores(offer, tmp_path) if tmp_path in path.parents]
    held = next(path for path in files if bytes([7] * 64) in path.read_bytes())
    assert flip(held, held.read_bytes().index(bytes([7] * 64)), bit=1)

    assert receive(transport, offer).tensors["w"].tolist()[:2] == [6, 7]
    assert any(place in held.parents for place in places(offer))
    transport.close()
