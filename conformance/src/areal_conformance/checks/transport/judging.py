"""How what came through a transport is judged: the same bits, or nothing at all; and how far a version is sent.

Knows: what two dictionaries of tensors must have in common, which error says that nothing can be read, what is left.
Does not know: how bytes travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_ends import Received
from areal_conformance.benches.transport_footprint import Footprint
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import Offer, WeightSink, WeightTransport
from areal_core.weights.tensors import manifest_of


def same(sent: Mapping[str, Tensor], received: Received, where: str) -> None:
    """Expect the same names, dtypes, shapes and bits."""
    got = received.tensors
    told = f"got {list(got)[:6]} ({len(got)}); missing {sorted(sent.keys() - got.keys())[:4]}"
    due = f"expected the tensors {list(sent)[:6]} ({len(sent)}) once each and in this order"
    expect(list(got) == list(sent), f"{where}: {due}, {told}")
    for name, tensor in sent.items():
        other = got[name]
        was, came = ((one.dtype, list(one.shape)) for one in (tensor, other))
        expect(came == was, f"{where}: {name!r} was {was} and came as {came}")
        if bits(tensor) == bits(other):
            continue
        left, right = (torch.frombuffer(bytearray(bits(t)), dtype=torch.uint8) for t in (tensor, other))
        wrong = (left != right).nonzero().flatten().tolist()
        told = f"{len(wrong)} of {left.numel()} bytes of {name!r} ({tensor.dtype}) differ"
        expect(not wrong, f"{where}: {told}, the first is byte {wrong[0] if wrong else 0}")


def bits(tensor: Tensor) -> bytes:
    """Return a tensor's bytes in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def unreadable(bench: TransportBench, transport: WeightTransport, offer: Offer, why: str) -> None:
    """Expect that nothing can be read, and that it is a WeightSyncError that says so."""
    raises(WeightSyncError, f"{why}, reading", lambda: bench.receive(transport, offer))


def arrives(
    bench: TransportBench,
    controller: WeightTransport,
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    version: int = 2,
    sender: WeightTransport | None = None,
    receiver: WeightTransport | None = None,
) -> None:
    """Expect a version that is opened now to arrive, between new ends where none are given; then release it."""
    offer = bench.sent(controller, tensors, version=version, sender=sender)
    same(tensors, bench.receive(receiver or bench.transport(), offer), where)
    controller.release(offer)


def sent_until(
    bench: TransportBench, sender: WeightTransport, offer: Offer, tensors: Mapping[str, Tensor], stage: str
) -> WeightSink:
    """Send as far as `made`, `begun`, `half`, `written` or `finished`; return the sink. `half` is the first tensor."""
    sink = sender.sink(bench.travelled(offer))
    if stage != "made":
        sink.begin(manifest_of(tensors.items(), version=offer.version))
    if stage == "half":
        sink.write(dict([*tensors.items()][:1]))
    if stage in ("written", "finished"):
        sink.write(tensors)
    if stage == "finished":
        sink.finish()
    return sink


def nothing_left(bench: TransportBench, before: Footprint, known: Iterable[Path], when: str) -> None:
    """Expect this process and the folders to be as they were."""
    bench.becomes(lambda: not bench.look().beyond(before))
    left = [*bench.look().beyond(before), *sorted(str(path) for path in known if path.exists())]
    expect(not left, f"{when}, there must be nothing left; there is {'; '.join(left[:6])}")
