"""Whose memory a stream uses: the sender's as it is, the receiver's as long as nothing broke."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from areal_core.contract.weights import Offer
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_local.transports import collective_source
from areal_local.transports.collective_source import GroupCache
from areal_torch.collective.group import BroadcastGroup

from .streams import TENSORS, Ends, receive, send
from .transfers import at_once


@pytest.mark.parametrize("as_they_are", [True, False])
def test_tensors_are_the_senders_again_once_written(
    end: Ends, monkeypatch: pytest.MonkeyPatch, as_they_are: bool
) -> None:
    """What `write` sent without a copy has left when it returns; so what becomes of a tensor then reaches nobody."""
    controller, sender, receiver = end(), end(), end()
    tensor = torch.arange(6.0).reshape(2, 3) if as_they_are else torch.arange(6.0).reshape(3, 2).t()
    fill, settle = collective_source.fill, BroadcastGroup.settle
    moved, returned, early = threading.Event(), threading.Event(), list[bool]()

    def filling(group: BroadcastGroup, views: Sequence[Tensor]) -> None:
        assert moved.wait(20.0)
        early.append(returned.is_set())
        fill(group, views)

    def settling(group: BroadcastGroup) -> None:
        moved.set()
        settle(group)

    monkeypatch.setattr(collective_source, "fill", filling)
    monkeypatch.setattr(BroadcastGroup, "settle", settling)

    def write(offer: Offer) -> dict[str, str]:
        sink = sender.sink(offer)
        sink.begin(manifest_of([("w", tensor)], version=1))
        sink.write({"w": tensor})
        returned.set()
        tensor.zero_()
        moved.set()
        return dict(sink.finish().fingerprints)

    offer = controller.open(1)
    (own,) = controller.expect(offer, ("receiver",))
    before = {"w": fingerprint(tensor)}

    assert at_once(lambda: write(offer), lambda: receive(receiver, own)) == [before, before]
    assert early == [not as_they_are], "a copy leaves while the sender goes on, and nothing else does"


def test_a_receiver_keeps_its_memory_until_a_transfer_breaks(end: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version arrives in the same memory; where a transfer broke, bytes may still come into it."""
    controller, sender, receiver = end(), end(), end()
    used: list[set[int]] = []
    fill, kept = collective_source.fill, list[Sequence[Tensor]]()
    keep = receiver.cache.keep_memories

    def keeping(memories: Sequence[Tensor]) -> None:
        kept.append(memories)
        keep(memories)

    def filling(group: BroadcastGroup, views: Sequence[Tensor]) -> None:
        used[-1].add(views[0].untyped_storage().data_ptr())
        fill(group, views)

    monkeypatch.setattr(collective_source, "fill", filling)
    monkeypatch.setattr(receiver.cache, "keep_memories", keeping)

    def stop(offer: Offer) -> None:
        sink = sender.sink(offer)
        sink.begin(manifest_of(TENSORS.items(), version=offer.version))
        sink.abort()

    for version, sending in enumerate((lambda o: send(sender, o), lambda o: send(sender, o), stop), 1):
        used.append(set())
        offer = controller.open(version)
        (own,) = controller.expect(offer, ("receiver",))
        at_once(lambda s=sending, o=offer: s(o), lambda o=own: receive(receiver, o))
        controller.release(offer)

    assert used[0] == used[1] and len(used[0]) == 2
    assert [{memory.data_ptr() for memory in memories} for memories in kept] == used[:2]


def test_kept_memory_is_given_to_one_and_only_if_it_is_enough() -> None:
    """Not twice, not where more is needed, and not after the end."""
    cache = GroupCache()
    first = cache.take_memories(2, 100, pinned=False)

    cache.keep_memories(first)
    again, meanwhile = (cache.take_memories(2, 60, pinned=False) for _ in range(2))
    cache.keep_memories(first)
    larger = cache.take_memories(2, 101, pinned=False)
    cache.close()
    cache.keep_memories(larger)
    late = cache.take_memories(2, 101, pinned=False)

    assert again is first
    assert meanwhile is not first
    assert [memory.numel() for memory in larger] == [101, 101]
    assert late is not larger
