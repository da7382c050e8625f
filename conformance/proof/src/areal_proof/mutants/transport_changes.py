"""Transports that send what changed, and go wrong about what it changed from, where, or what proves it.

Knows: how the transport `collective` tells changes (its option `delta`).
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from areal_core.weights.tensors import fingerprint
from areal_local.transports import delta
from areal_local.transports.collective import Broadcaster, CollectiveTransport
from areal_local.transports.delta_base import KeptVersion, Outgoing
from areal_local.transports.sink import CheckedSink
from areal_proof.mutants.rows import breaking, put, row, then, within
from areal_proof.mutants.weight_parts import breaking_ends
from areal_torch.collective.rendezvous import Rendezvous

breaks = breaking("transport/collective", CollectiveTransport)
_, breaks_sink, _ = breaking_ends("transport/collective", CollectiveTransport)


class _AnyVersion(KeptVersion):
    def mark(self) -> str:
        return "kept" if super().mark() else ""

    def take(self, mark: str) -> dict[str, Tensor]:
        return super().take(super().mark() if mark else "")


class _Forgetful(KeptVersion):
    def keep(self, mark: str, tensors: dict[str, Tensor]) -> None:
        """Keep nothing."""


class _Certain(Broadcaster):
    """Takes it for granted that receivers have what the sender has."""

    def _base(self, told: Sequence[Mapping[str, Any]]) -> str | None:  # Any: JSON
        mine = self._kept.mark() if self._kept else ""
        return super()._base([{**one, "kept": mine} if "kept" in one else one for one in told])


class _OfChanges(Broadcaster):
    def _base(self, told: Sequence[Mapping[str, Any]]) -> str | None:  # Any: JSON
        of = super()._base(told)
        if self.outgoing is not None:
            self.outgoing.__class__ = _ProvedChanges
        return of


class _ProvedChanges(Outgoing):
    def _change(self, name: str, tensor: Tensor) -> Tensor:
        difference = super()._change(name, tensor)
        vars(self).setdefault("differences", {})[name] = difference
        return difference

    def prove(self, names: Sequence[str]) -> dict[str, str]:
        super().prove(names)
        return {name: fingerprint(vars(self)["differences"][name]) for name in names}


def _made_by(broadcaster: type[Broadcaster]) -> Any:
    return lambda self, offer: CheckedSink(
        broadcaster(Rendezvous(offer, self.connections), offer, self.cache, self.kept),
        version=offer.version,
        bucket_bytes=int(offer.location["bucket_bytes"]),
    )


_encode, _apply = delta.encode, delta.apply


def _without_the_last(before: Tensor, after: Tensor, itemsize: int) -> Tensor:
    changed = (before != after).nonzero()
    if not len(changed):
        return _encode(before, after, itemsize)
    kept = after.clone()
    last = int(changed[-1]) // itemsize * itemsize
    kept[last : last + itemsize] = before[last : last + itemsize]
    return _encode(before, kept, itemsize)


def _first_half(state: Tensor, difference: Tensor, itemsize: int) -> None:
    before = state[len(state) // 2 :].clone()
    _apply(state, difference, itemsize)
    state[len(state) // 2 :] = before


ROWS = breaks.rows(
    row("ChangesOfAnyVersion", "Changes are made to whatever version a receiver has.", "transport.options.checks",
        row="update-chain", __init__=then(lambda self: setattr(self, "kept", _AnyVersion()))),
    row("EverybodyHasItAll", "Changes are sent to receivers that joined, or missed the version before.",
        "transport.options.checks", row="update-chain", sink=_made_by(_Certain)),
    row("ProvesTheChange", "The receipt has the fingerprints of what changed, not of the tensors after it.",
        "transport.options.checks", sink=_made_by(_OfChanges)),
    row("NothingIsKept", "Takes the option delta, and sends everything.", "transport.options.shown",
        __init__=then(lambda self: setattr(self, "kept", _Forgetful()))),
)  # fmt: skip


SINK_ROWS = breaks_sink.rows(
    row("LosesTheLastChange", "The last element of a tensor that changed is not told.", "transport.options.checks",
        write=within(lambda: put(delta, encode=_without_the_last))),
    row("HalfAChange", "Changes to the second half of a tensor are lost.", "transport.options.checks",
        write=within(lambda: put(delta, apply=_first_half))),
)  # fmt: skip
