"""Weights that travel as what changed: exact, small, and whole again whenever a receiver has another version."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_core.contract.errors import CoverageError, FingerprintMismatch, WeightSyncError
from areal_core.contract.weights import Offer, Receipt, TensorSpec
from areal_core.weights.coverage import compare
from areal_core.weights.tensors import manifest_of
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.collective_source import CollectiveSource
from areal_local.transports.config import CollectiveConfig
from areal_local.transports.delta_base import Incoming
from areal_torch.bucketing import buckets
from areal_torch.collective.rendezvous import Rendezvous
from areal_torch.testing.models import make_tiny_model

from .transfers import at_once, receipt_for

Make = Callable[[], CollectiveTransport]
State = dict[str, Tensor]


@pytest.fixture
def end() -> Iterator[Make]:
    """Make ends of the transport with the option; all are closed after the test."""
    made: list[CollectiveTransport] = []

    def make() -> CollectiveTransport:
        made.append(CollectiveTransport(CollectiveConfig(bucket_bytes=40_000, timeout_s=20.0, delta=True)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def send(
    transport: CollectiveTransport, offer: Offer, tensors: Mapping[str, Tensor], announced: Mapping[str, Tensor]
) -> tuple[Receipt, int]:
    """Send a version; return the receipt, and how many bytes went to each receiver."""
    sink = transport.sink(offer)
    sink.begin(manifest_of(announced.items(), version=offer.version))
    for bucket in buckets(tensors.items(), sink.bucket_bytes):
        sink.write(bucket)
    receipt = sink.finish()
    outgoing = sink.store.outgoing  # type: ignore[attr-defined]  # of this transport's store
    return receipt, outgoing.num_bytes if outgoing else receipt.num_bytes


def receive(transport: CollectiveTransport, offer: Offer) -> State:
    source = transport.source(offer)
    try:
        return {name: tensor.clone() for bucket in source.buckets() for name, tensor in bucket.items()}
    finally:
        source.close()


class Fleet:
    """A controller, a sender and receivers by name; versions are counted."""

    def __init__(self, make: Make, *names: str) -> None:
        self.controller, self.sender = make(), make()
        self.receivers = {name: make() for name in names}
        self.version = 0

    def attempt(
        self, tensors: Mapping[str, Tensor], *names: str, announced: Mapping[str, Tensor] | None = None
    ) -> list[Any]:
        """Send to these receivers; return what the sender and each of them gave or raised. Any: either."""
        self.version += 1
        offer = self.controller.open(self.version)
        own = self.controller.expect(offer, names)
        ends = [self.receivers[name] for name in names]
        outcomes = at_once(
            lambda: send(self.sender, offer, tensors, announced or tensors),
            *(lambda e=end, o=each: receive(e, o) for end, each in zip(ends, own, strict=True)),
        )
        self.controller.release(offer)
        return outcomes

    def share(self, tensors: Mapping[str, Tensor], *names: str) -> float:
        """Send to these receivers, compare every bit, and return which share of the bytes travelled."""
        sent, *received = self.attempt(tensors, *names)
        assert not isinstance(sent, Exception), sent
        for state in received:
            assert not isinstance(state, Exception), state
            compare(sent[0], receipt_for(state, self.version), "a receiver")
            compare(receipt_for(dict(tensors), self.version), receipt_for(state, self.version), "a receiver")
        return float(sent[1] / sum(tensor.nbytes for tensor in tensors.values()))


def some(seed: int = 0) -> State:
    """Return tensors of several buckets; small ones among them."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (300, 40), "norm": (40,), "scale": (), "none": (0, 3), "head": (200, 40)}
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}


def nudged(tensors: State, seed: int) -> State:
    """Return tensors of which one element in a hundred has another bit."""
    generator = torch.Generator().manual_seed(seed)
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in changed.values():
        tensor.view(torch.int16).bitwise_xor_((torch.rand(tensor.shape, generator=generator) < 0.01).to(torch.int16))
    return changed


def test_updates_of_a_bfloat16_model_take_a_tenth_of_the_bytes(end: Make, tmp_path: Path) -> None:
    """AdamW at 1e-6 on weights of float32 that are served as bfloat16: the first version goes whole, then changes."""
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "model"), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    ids = torch.randint(0, 64, (4, 24), generator=torch.Generator().manual_seed(1))
    fleet, shares = Fleet(end, "a", "b"), []
    for _ in range(4):
        served = {name: parameter.detach().to(torch.bfloat16) for name, parameter in model.named_parameters()}
        shares.append(fleet.share(served, "a", "b"))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    assert 1.0 <= shares[0] < 1.01
    assert all(0.0 < share < 0.1 for share in shares[1:]), shares


def test_whoever_lacks_the_version_before_gets_it_whole(end: Make) -> None:
    """One that joins, and one that missed a version; everybody else with it, and changes again from then on."""
    fleet, state = Fleet(end, "a", "b"), some()
    shares = []
    for seed, names in enumerate(["a", "a", "ab", "ab", "b", "ab", "ab", "a"]):
        state = nudged(state, seed)
        shares.append(fleet.share(state, *names))

    assert [share > 0.5 for share in shares] == [True, False, True, False, False, True, False, False], shares


def test_a_sender_that_comes_anew_sends_everything(end: Make) -> None:
    """Receivers have a version, but the trainer that sent it is gone."""
    fleet, state = Fleet(end, "a"), some()
    fleet.share(state, "a")
    fleet.sender = end()

    assert fleet.share(nudged(state, 1), "a") > 0.5
    assert fleet.share(nudged(state, 2), "a") < 0.1


def test_tensors_of_other_names_and_shapes_go_whole(end: Make) -> None:
    """Only they: what is announced as before travels as a change; and what everybody has, as nothing."""
    fleet, state = Fleet(end, "a"), some()
    fleet.share(state, "a")
    head = state.pop("head")
    other = {"new": head, **nudged(state, 1), "embed": state["embed"].reshape(40, 300)}

    assert fleet.share(other, "a") > 0.5
    assert fleet.share(other, "a") < 0.01


def test_tensors_most_of_which_changed_go_whole(end: Make) -> None:
    """Changes would be larger than the tensors; what travels is never much more than these."""
    fleet = Fleet(end, "a")
    fleet.share(some(1), "a")

    assert fleet.share(some(2), "a") < 1.01


def test_after_a_broken_transfer_everything_is_sent(end: Make) -> None:
    """A sender that stopped half way had changed what it kept, and so had the receivers: neither uses it again."""
    fleet, state = Fleet(end, "a"), some()
    fleet.share(state, "a")
    changed = nudged(state, 1)
    sent, received = fleet.attempt({**changed, "head": changed["head"].float()}, "a", announced=changed)
    assert isinstance(sent, CoverageError) and isinstance(received, WeightSyncError)

    assert fleet.share(changed, "a") > 0.5
    assert fleet.share(nudged(changed, 2), "a") < 0.1


def test_damage_to_what_a_receiver_keeps_is_found(end: Make) -> None:
    """One bit of a version kept, flipped: changes to it are refused, and the next version is sent whole."""
    fleet, state = Fleet(end, "a"), some()
    fleet.share(state, "a")
    kept = fleet.receivers["a"].kept
    mark = kept.mark()
    tensors = copy.copy(kept.take(mark))
    tensors["head"].view(torch.int16)[7, 7] ^= 1
    kept.keep(mark, tensors)

    _, received = fleet.attempt(nudged(state, 1), "a")

    assert isinstance(received, FingerprintMismatch), received
    assert fleet.share(nudged(state, 2), "a") > 0.5


class Direct(CollectiveTransport):
    """Ends of an engine whose own ranks join the group: they know no changes."""

    def source(self, offer: Offer) -> CollectiveSource:
        return CollectiveSource(Rendezvous(offer, self.connections), offer, self.cache)


def test_beside_ranks_that_know_no_changes_everybody_gets_whole_tensors(end: Make) -> None:
    """An engine's own ranks take tensors as they are announced; nobody has a version kept afterwards."""
    fleet, state = Fleet(end, "a"), some()
    fleet.receivers["direct"] = Direct()
    fleet.share(state, "a")

    assert fleet.share(nudged(state, 1), "a", "direct") == 1.0
    assert fleet.share(nudged(state, 2), "a") > 0.5
    fleet.receivers["direct"].close()


def test_a_run_can_see_what_travelled(end: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The log of the trainer's rank 0 has the bytes of every update, and of how many."""
    fleet, state = Fleet(end, "a"), some()
    size = sum(tensor.nbytes for tensor in state.values())
    with caplog.at_level(logging.INFO, logger="areal.weights"):
        fleet.share(state, "a")
        fleet.share(state, "a")

    told = [record.getMessage() for record in caplog.records if "travelled" in record.getMessage()]
    assert told[1] == f"version 2 travelled as {5 * 8} of {size} bytes"


def test_after_a_bucket_that_did_not_arrive_no_other_is_asked_for() -> None:
    """Two buckets are under way at once; the second would take bytes of the first for its own, and gloo ends there."""
    asked: list[int] = []

    def fill(views: Sequence[Tensor]) -> None:
        asked.append(len(views))
        raise RuntimeError("the link broke")

    incoming = Incoming({}, fill)
    spec = TensorSpec(name="w", shape=(3,), dtype="float32")
    with pytest.raises(RuntimeError, match="the link broke"):
        incoming.receive([spec])
    with pytest.raises(WeightSyncError, match="the one before did not"):
        incoming.receive([spec])

    assert asked == [1]
