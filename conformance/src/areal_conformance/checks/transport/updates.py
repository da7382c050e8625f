"""One update after another: of memory that the trainer goes on writing, to a fleet in which a receiver is replaced.

Knows: places at which a change is far from the one before, or behind the first million elements of a tensor.
Does not know: whether whole tensors travel or what changed of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_tensors import noise, plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same

_BEHIND = 1 << 20
_NEAR = tuple(range(40))
_PLACES: tuple[Sequence[int], ...] = (
    _NEAR,
    (*_NEAR, *(39 + gap for gap in (255, 255 + 256, 255 + 256 + 257))),
    (*_NEAR, 40 + 254, 40 + 254 + 256),
    (65_535, 2 * 65_536 - 1, 3 * 65_536 - 1),
    (65_534, 2 * 65_536 - 1),
    (65_536, _BEHIND - 1, _BEHIND, _BEHIND + 5, _BEHIND + 70_000),
    (_BEHIND + 70_001,),
    (),
)
"""Of the elements that change in a version; what stands between two of them is as much as a byte, or two, can count."""


@check("transport.version.in_place", level=Level.SINGLE, law=7, spec="weights")
def in_place(bench: TransportBench) -> None:
    """A version is the trainer's memory as it is then, whatever few elements of it changed since the one before."""
    controller, sender, receiver = (bench.transport() for _ in range(3))
    count = _BEHIND + 70_002
    tensors = {**plain(1), "far": noise((count,), "int8", 2), "wide": noise((count // 4, 2), "bfloat16", 3)}
    for version, places in enumerate(_PLACES, 1):
        for tensor in tensors.values():
            flat = tensor.view(torch.uint8).view(-1)
            here = [place * tensor.element_size() for place in places if place < tensor.numel()]
            flat[here] ^= 1
        wanted = {name: tensor.clone() for name, tensor in tensors.items()}
        offer = controller.open(version)
        _, (received,) = bench.carry(controller, sender, [receiver], offer, tensors)
        same(wanted, received, f"version {version}, of which the elements {places} changed where they are")
        controller.release(offer)


@check("transport.stream.newcomer", level=Level.SINGLE, law=7, spec="weights#streams", requires=("streams",))
def newcomer(bench: TransportBench) -> None:
    """A receiver in the place and with the name of one that is gone gets the next version, and so do all the others."""
    controller, sender, steady = (bench.transport() for _ in range(3))
    fleet = [steady, bench.transport()]
    for version in range(1, 7):
        if version % 2:
            fleet[version // 2 % 2] = bench.transport()
        offer = controller.open(version)
        _, received = bench.carry(controller, sender, fleet, offer, plain(version))
        for number, one in enumerate(received):
            same(plain(version), one, f"version {version}, receiver {number} of {len(fleet)}")
        controller.release(offer)
