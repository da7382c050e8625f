"""How what came through a transport is judged: the same bits, or nothing at all.

Knows: what two dictionaries of tensors must have in common, and which error says that nothing can be read.
Does not know: how bytes travel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_ends import Received
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError, WeightSyncError
from areal_core.contract.weights import Offer, WeightTransport


def same(sent: Mapping[str, Tensor], received: Received, where: str) -> None:
    """Expect the same names, dtypes, shapes and bits."""
    got = received.tensors
    expect(
        list(got) == list(sent),
        f"{where}: expected the tensors {list(sent)[:6]} ({len(sent)}) once each and in this order, "
        f"got {list(got)[:6]} ({len(got)}); missing {sorted(sent.keys() - got.keys())[:4]}",
    )
    for name, tensor in sent.items():
        other = got[name]
        expect(
            (other.dtype, other.shape) == (tensor.dtype, tensor.shape),
            f"{where}: {name!r} was {tensor.dtype} {list(tensor.shape)} and came as {other.dtype} {list(other.shape)}",
        )
        if bits(tensor) == bits(other):
            continue
        left, right = (torch.frombuffer(bytearray(bits(t)), dtype=torch.uint8) for t in (tensor, other))
        wrong = (left != right).nonzero().flatten().tolist()
        expect(
            not wrong,
            f"{where}: {len(wrong)} of {left.numel()} bytes of {name!r} ({tensor.dtype}) differ, the first is byte "
            f"{wrong[0] if wrong else 0}",
        )


def bits(tensor: Tensor) -> bytes:
    """Return a tensor's bytes in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def unreadable(bench: TransportBench, transport: WeightTransport, offer: Offer, why: str) -> None:
    """Expect that nothing can be read, and that it is a WeightSyncError that says so."""
    try:
        received = bench.receive(transport, offer)
    except WeightSyncError:
        return
    except ArealError as error:
        raise Violation(
            f"{why}: reading must fail with WeightSyncError, got {type(error).__name__}: {error}"
        ) from error
    raise Violation(f"{why}: reading must fail, but {len(received.tensors)} tensors came: {list(received.tensors)[:5]}")
