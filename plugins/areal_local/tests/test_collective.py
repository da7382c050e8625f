"""The stream's own promises: where it listens, what it keeps, and that engines' own workers can take its slots."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import attrs
import psutil
import pytest
import torch
from tests.benches.strangers import reached
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from areal_conformance.benches.process import listening
from areal_core.contract.errors import CoverageError, StorageError, WeightSyncError
from areal_core.contract.optional import SupportsStreaming
from areal_core.contract.weights import Offer, WeightManifest
from areal_core.weights.tensors import manifest_of, torch_dtype
from areal_devices.npu import npu
from areal_local.transports.collective import CollectiveTransport
from areal_local.transports.config import CollectiveConfig
from areal_torch.collective.group import BroadcastGroup, choose, local_identity
from areal_torch.collective.rank_slot import RankSlot, SlotSource
from areal_torch.collective.signed_store import SignedStore

from .streams import FINGERPRINTS, TENSORS, Ends, receive, send
from .transfers import at_once

SLOT = RankSlot(
    address="127.0.0.1",
    port=1,
    group_name="weights",
    backend="gloo",
    first_rank=0,
    num_ranks=1,
    world_size=2,
    timeout_s=5.0,
)
"""The first of two ranks."""


def test_it_streams_and_says_so(end: Ends) -> None:
    """The transport satisfies the protocol behind its claim, and its sources that of slots."""
    transport = end()
    (offer,) = transport.expect(transport.open(1), ("one",))

    assert isinstance(transport, SupportsStreaming)
    assert isinstance(transport.source(offer), SlotSource)


def test_every_socket_is_on_loopback(end: Ends) -> None:
    """Neither the store nor the group listens where other machines could call."""
    controller, sender, receiver = end(), end(), end()
    offer = controller.open(1)
    (own,) = controller.expect(offer, ("one",))
    outcomes = at_once(lambda: send(sender, offer), lambda: receive(receiver, own))

    listening = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}

    assert outcomes[1] == FINGERPRINTS, outcomes
    assert {address for address in listening if not address.startswith("127.")} == set()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux drops who comes")
def test_the_ends_of_a_group_take_no_connection_once_they_have_met(end: Ends) -> None:
    """Gloo would take strangers for ever. The store stays open: whoever receives the next version comes to it."""
    before = listening()
    controller, sender, *receivers = end(), end(), end(), end()
    offer = controller.open(1)
    own = controller.expect(offer, ("one", "two"))
    outcomes = at_once(
        lambda: send(sender, offer), *(partial(receive, *each) for each in zip(receivers, own, strict=True))
    )
    ports = listening() - before
    store = (str(offer.location["address"]), int(offer.location["port"]))

    assert outcomes[1:] == [FINGERPRINTS] * 2, outcomes
    assert len(ports) >= 4, "the store's, and one of each end"
    assert reached(sorted(ports)) == [store]


def test_a_stranger_at_the_store_learns_no_ticket_and_is_not_believed(end: Ends) -> None:
    """Everybody may list, read and write its keys. None is a ticket, and what is written is nobody's word."""
    controller, sender, receiver = end(), end(), end()
    offer = controller.open(1)
    (own,) = controller.expect(offer, ("one",))
    where, ticket = offer.location, str(offer.location["ticket"])
    stranger = TCPStore(str(where["address"]), int(where["port"]), is_master=False, wait_for_workers=False)
    seen = stranger.list_keys()
    (receivers,) = (key for key in seen if key.endswith("/receivers"))
    stranger.set(receivers, json.dumps({"value": ["one", "me"]}))

    sent, received = at_once(lambda: send(sender, offer), lambda: receive(receiver, own))

    assert not any(ticket in text for key in seen for text in (key, stranger.get(key).decode()))
    assert isinstance(sent, WeightSyncError) and "written by a stranger" in str(sent) and "shm or disk" in str(sent)
    assert isinstance(received, WeightSyncError)
    controller.release(offer)


@pytest.mark.parametrize("who", ["the sender", "a receiver"])
def test_a_stranger_who_writes_where_an_end_would_is_not_believed(end: Ends, who: str) -> None:
    """A manifest or a readiness of somebody else's making ends the transfer; nothing of it is taken."""
    controller, sender, receiver = end(), end(), end()
    offer = controller.open(1)
    (own,) = controller.expect(offer, ("one",))
    where = offer.location
    stranger = TCPStore(str(where["address"]), int(where["port"]), is_master=False, wait_for_workers=False)
    prefix = next(key for key in stranger.list_keys() if key.endswith("/open")).removesuffix("open")
    told = {"the sender": "manifest", "a receiver": "ready/0"}[who]
    stranger.set(prefix + told, json.dumps({"value": {"tensors": [], "tied": {}, "ranks": 1, "place": "cpu"}}))

    outcomes = at_once(lambda: send(sender, offer), lambda: receive(receiver, own))

    assert all(isinstance(outcome, WeightSyncError) for outcome in outcomes), outcomes
    assert any("written by a stranger" in str(outcome) for outcome in outcomes)


class Forger(SignedStore):
    """A stranger's, who finds the keys of a group, and cannot sign."""

    def _signature(self, key: str, value: bytes) -> bytes:
        return b"0" * 32


def test_a_stranger_cannot_join_a_group_in_the_place_of_a_rank(end: Ends) -> None:
    """The addresses that gloo's ranks tell each other are signed as well."""
    where = end().open(1).location
    slot = attrs.evolve(SLOT, address=str(where["address"]), port=int(where["port"]), secret="a secret")
    lines = [TCPStore(slot.address, slot.port, is_master=False, wait_for_workers=False) for _ in range(2)]

    joined, _ = at_once(
        lambda: BroadcastGroup(slot, lines[0]), lambda: _make_group(slot, 1, Forger(lines[1], slot.secret))
    )

    assert isinstance(joined, RuntimeError) and "written by a stranger" in str(joined)
    assert slot.secret not in repr(slot)


def test_an_address_that_is_not_here_is_told(end: Ends) -> None:
    """A host of another machine is a StorageError that names the option."""
    transport = CollectiveTransport(CollectiveConfig(host="192.0.2.1"))

    with pytest.raises(StorageError, match=r"192\.0\.2\.1(.|\n)*weight_sync.options.host"):
        transport.open(1)


def test_tensors_out_of_order_are_refused_on_both_sides(end: Ends) -> None:
    """A receiver cannot know another order than the one announced."""
    controller, sender, receiver = end(), end(), end()
    offer = controller.open(1)
    (own,) = controller.expect(offer, ("one",))

    def backwards() -> None:
        sink = sender.sink(offer)
        sink.begin(manifest_of(TENSORS.items(), version=1))
        sink.write(dict(reversed(TENSORS.items())))

    sent, received = at_once(backwards, lambda: receive(receiver, own))

    assert isinstance(sent, CoverageError) and "order" in str(sent)
    assert isinstance(received, WeightSyncError)


def test_a_receiver_that_came_anew_makes_the_group_anew(end: Ends) -> None:
    """A group that one participant no longer has is nobody's, though names and numbers are the same."""
    controller, sender, staying = end(), end(), end()
    groups = []
    for version, other in enumerate((first := end(), first, end()), 1):
        offer = controller.open(version)
        own = controller.expect(offer, ("staying", "other"))
        outcomes = at_once(
            lambda o=offer: send(sender, o),
            lambda o=own: receive(staying, o[0]),
            lambda o=own, e=other: receive(e, o[1]),
        )
        assert outcomes[1:] == [FINGERPRINTS, FINGERPRINTS], outcomes
        groups.append(sender.cache.held())
        controller.release(offer)

    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_engine_takes_its_seats_as_sglang_does(end: Ends, num_ranks: int) -> None:
    """Ranks that join by torch's own helper get one broadcast a tensor, beside a receiver that reads buckets."""
    controller, sender, generic, engine = end(), end(), end(), end()
    offer = controller.open(1)
    plain, direct = controller.expect(offer, ("plain", "direct"))

    def take_part() -> list[dict[str, str]]:
        source = engine.source(direct)
        slot = source.take_slot(num_ranks)
        ranks = at_once(
            *(lambda n=n: _as_an_engine(slot, slot.first_rank + n, source.manifest) for n in range(num_ranks))
        )
        source.wait_finished()
        source.close()
        return ranks

    sent, received, ranks = at_once(lambda: send(sender, offer), lambda: receive(generic, plain), take_part)

    assert received == FINGERPRINTS, (sent, received)
    assert ranks == [FINGERPRINTS] * num_ranks
    assert dict(sent.fingerprints) == FINGERPRINTS


_ENGINE_RANK = """
import json, sys, torch
from datetime import timedelta
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world, rendezvous
from areal_core.weights.tensors import fingerprint

told = json.load(sys.stdin)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
init, rank, world, name = told["init"], told["rank"], told["world"], told["name"]
store, rank, world = next(rendezvous(init, rank, world, timeout=timedelta(seconds=200)))
store.set_timeout(timedelta(seconds=200))
group, _ = _new_process_group_helper(
    world, rank, [], Backend(told["backend"]), PrefixStore(name, store), group_name=name, timeout=timedelta(seconds=200)
)
_world.pg_group_ranks[group] = {i: i for i in range(world)}
weights, handles = {}, []
for tensor, shape, dtype in told["tensors"]:
    weights[tensor] = torch.empty(shape, dtype=getattr(torch, dtype))
    handles.append(dist.broadcast(weights[tensor], src=0, group=group, async_op=True))
for handle in handles:
    handle.wait()
json.dump({tensor: fingerprint(weight) for tensor, weight in weights.items()}, sys.stdout)
"""
"""What a rank of an engine runs: SGLang's `init_custom_process_group` and `receive_weights_from_distributed`."""


def _as_an_engine(slot: RankSlot, rank: int, manifest: WeightManifest) -> dict[str, str]:
    told = {
        "init": f"tcp://{slot.address}:{slot.port}",
        "rank": rank,
        "world": slot.world_size,
        "name": slot.group_name,
        "backend": slot.backend,
        "tensors": [[spec.name, spec.shape, spec.dtype] for spec in manifest.tensors],
    }
    done = subprocess.run(
        [sys.executable, "-c", _ENGINE_RANK], input=json.dumps(told), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    prints: dict[str, str] = json.loads(done.stdout)
    return prints


def _make_group(slot: RankSlot, rank: int, store: Any) -> Any:  # Any: torch has no stub for stores
    prefixed = PrefixStore("cpu/", PrefixStore(f"{slot.group_name}/", PrefixStore(slot.group_name, store)))
    return dist.ProcessGroupGloo(prefixed, rank, slot.world_size, timedelta(seconds=200))


def test_a_held_group_needs_no_joining(end: Ends) -> None:
    """The second slot of an engine that says what it holds has the same name; of one that forgot, another."""
    controller, sender, engine = end(), end(), end()
    names: list[str] = []
    kept: list[Any] = []

    def take_part(offer: Offer, held: str) -> None:
        source = engine.source(offer)
        slot = source.take_slot(1, held=held)
        if slot.group_name != held:
            store = TCPStore(slot.address, slot.port, None, False, timedelta(seconds=200), wait_for_workers=False)
            kept[:] = [_make_group(slot, slot.first_rank, store)]
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        for spec in source.manifest.tensors:
            kept[0].broadcast([torch.empty(spec.shape, dtype=torch_dtype(spec))], options).wait()
        source.wait_finished()
        source.close()
        names.append(slot.group_name)

    for version, forgets in enumerate((False, False, True), 1):
        offer = controller.open(version)
        (own,) = controller.expect(offer, ("direct",))
        held = "" if forgets or not names else names[-1]
        outcomes = at_once(lambda o=offer: send(sender, o), lambda o=own, h=held: take_part(o, h))
        assert not any(isinstance(outcome, Exception) for outcome in outcomes), outcomes
        controller.release(offer)

    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    ("wanted", "places", "chosen"),
    [
        ("auto", ("cpu", "cpu"), "gloo"),
        ("auto", ("cuda:GPU-1", "cuda:GPU-2"), "nccl"),
        ("auto", ("cuda:GPU-1", "cuda:GPU-1"), "gloo"),
        ("auto", ("cuda:GPU-1", "cpu"), "gloo"),
        ("auto", ("cuda:GPU-1", "cuda"), "nccl"),
        ("auto", ("npu:a/0", "npu:a/1"), "hccl"),
        ("gloo", ("cuda:GPU-1", "cuda:GPU-2"), "gloo"),
    ],
)
def test_the_fast_backend_is_taken_where_everybody_has_a_device(
    wanted: str, places: tuple[str, ...], chosen: str
) -> None:
    """NCCL and HCCL need one device a rank; whatever else is there goes by gloo."""
    assert choose(wanted, places) == chosen


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ("nccl", ("cuda:GPU-1", "cpu")),
        ("nccl", ("cuda:GPU-1", "cuda:GPU-1")),
        ("hccl", ("npu:a/0", "cpu")),
        ("hccl", ("npu:a/0", "cuda:GPU-1")),
    ],
)
def test_a_backend_that_somebody_cannot_use_is_refused(wanted: str, places: tuple[str, ...]) -> None:
    """Before anybody waits for a group that will not be; with who is where."""
    with pytest.raises(WeightSyncError, match=rf"over {wanted}(.|\n)*{', '.join(places)}"):
        choose(wanted, places)


def test_both_ends_are_told_of_a_backend_that_is_not_here() -> None:
    """HCCL is asked for where there is no NPU: the sender refuses, and the receiver hears why."""
    transport = CollectiveTransport(CollectiveConfig(backend="hccl", timeout_s=20.0))
    offer = transport.open(1)
    (own,) = transport.expect(offer, ("one",))

    sent, received = at_once(lambda: send(transport, offer), lambda: receive(transport, own))
    transport.close()

    assert isinstance(sent, WeightSyncError) and "cannot be streamed over hccl" in str(sent)
    assert isinstance(received, WeightSyncError) and "cannot be streamed over hccl" in str(received)


def test_a_process_without_torch_npu_cannot_join_a_group_of_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's worker that was given such a slot says what is missing, in one kind of error."""
    monkeypatch.setitem(sys.modules, "torch_npu._C._distributed_c10d", None)
    slot = attrs.evolve(SLOT, backend="hccl")

    with pytest.raises(RuntimeError, match="HCCL comes with torch_npu"):
        BroadcastGroup(slot, dist.HashStore())


class Failing:
    """A group and its work, as those of devices are: a failure completes a broadcast, and waiting for it is silent."""

    def __init__(self, error: RuntimeError | None) -> None:
        self._error = error
        self.left = False

    def broadcast(self, tensors: list[Any], options: Any) -> Failing:
        """Return the work, which is done."""
        return self

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> RuntimeError | None:
        """Return what went wrong."""
        return self._error

    def wait(self) -> bool:
        """Return True, whatever went wrong."""
        return True

    def abort(self) -> None:
        """Remember it."""
        self.left = True


@pytest.mark.parametrize("error", [None, RuntimeError("the link is down")])
def test_a_broadcast_that_failed_on_a_device_is_not_taken_for_done(
    error: RuntimeError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's and HCCL's works are complete when they failed; only asking for the error tells."""
    made = Failing(error)
    monkeypatch.setattr("areal_torch.collective.group._make", lambda slot, store: made)
    slot = attrs.evolve(SLOT, backend="nccl")
    group = BroadcastGroup(slot, dist.HashStore())

    with pytest.raises(RuntimeError, match="the link is down") if error else nullcontext():
        group.broadcast(torch.zeros(1, dtype=torch.uint8))
    group.close()

    assert made.left


@pytest.mark.parametrize(
    ("number", "seen", "machine"), [(0, "3,5", "3"), (1, "3, 5", "5"), (1, "", "1"), (2, "3,5", "2")]
)
def test_an_npu_is_named_as_the_machine_does(number: int, seen: str, machine: str) -> None:
    """Workers confined to one NPU each all call theirs 0; HCCL has to know that they are different ones."""
    name = local_identity(npu(), number, {"ASCEND_RT_VISIBLE_DEVICES": seen})

    assert name == f"{socket.gethostname()}/{machine}"


@pytest.mark.parametrize("fan_out", ["auto", "broadcast"])
def test_every_receiver_gets_the_bytes_either_way(fan_out: str) -> None:
    """Passed on from each to the next, or broadcast; over one group for all versions, told by the sender's cache."""
    ends = [CollectiveTransport(CollectiveConfig(fan_out=fan_out, bucket_bytes=1000, timeout_s=20.0)) for _ in range(5)]
    controller, sender, *receivers = ends
    groups = set()
    for version in (1, 2):
        offer = controller.open(version)
        own = controller.expect(offer, ("one", "two", "three"))
        outcomes = at_once(
            partial(send, sender, offer), *(partial(receive, *each) for each in zip(receivers, own, strict=True))
        )
        controller.release(offer)
        assert outcomes[1:] == [FINGERPRINTS] * 3, outcomes
        assert sender.cache._kept is not None
        groups.add(sender.cache._kept.slot)
    for end in ends:
        end.close()

    assert [slot.route for slot in groups] == [{"auto": "chain"}.get(fan_out, fan_out)]


def test_a_receiver_that_stops_early_wakes_everybody_and_is_named(end: Ends) -> None:
    """The one before it and the one behind; the sender hears what it said, not what its neighbours saw of it."""
    controller, sender, *receivers = end(), end(), end(), end(), end()
    offer = controller.open(1)
    own = controller.expect(offer, ("one", "two", "three"))

    def stop() -> float:
        buckets = receivers[1].source(own[1]).buckets()
        next(buckets)  # so everybody has come, however long names took to look up
        stopped = time.monotonic()
        buckets.close()
        return stopped

    sent, first, stopped, last = at_once(
        partial(send, sender, offer),
        partial(receive, receivers[0], own[0]),
        stop,
        partial(receive, receivers[2], own[2]),
    )

    assert isinstance(sent, WeightSyncError)
    assert re.search("two(:| left:) it closed its source before the end", str(sent)), sent
    assert "one: " not in str(sent) and "three: " not in str(sent)
    assert isinstance(first, WeightSyncError) and isinstance(last, WeightSyncError)
    assert isinstance(stopped, float) and time.monotonic() - stopped < 10
