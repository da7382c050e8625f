"""What a reader does with the tensors it was handed reaches nobody: other readers and later reads get the sender's.

Knows: a reader in another process that writes where it must not.
Does not know: how bytes are shared; a reader that dies of its own write has done no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_conformance.benches.transport import TransportBench
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same
from areal_conformance.checks.transport.processes import same_there, well

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from areal_core.contract.weights import Offer


@check("transport.reader.writes", level=Level.DISTRIBUTED, law=7, spec="weights", deadline_s=240.0)
def reader_writes(bench: TransportBench) -> None:
    """A reader that writes into what it was handed changes nothing for others, for later reads, or later versions."""
    from areal_conformance.benches.transport_tensors import SETS

    controller, sender = bench.transport(), bench.transport()
    for version, kind in enumerate(("plain", "plain", "dtypes"), 1):
        tensors = SETS[kind](version)
        offer = controller.open(version)
        bench.send(sender, offer, tensors)
        scribbler = bench.peer("scribbler")
        answer = scribbler.ask("scribble", offer=offer)
        if answer.died:
            bench.notes.append(f"version {version}: a reader that wrote into a tensor ended")
        _all_whole(bench, offer, tensors, f"{kind}, version {version}, after another reader wrote into its tensors")
        controller.release(offer)


def _all_whole(bench: TransportBench, offer: Offer, tensors: Mapping[str, Tensor], where: str) -> None:
    """Expect the sender's bytes here, in a third process, and at a second read of the one that wrote."""
    same(tensors, bench.receive(bench.transport(), offer), f"{where}, read here")
    for name, who in (("receiver", "another process"), ("scribbler", "the process that wrote, reading anew")):
        got = well(bench.peer(name).ask("receive", offer=offer), f"{where}, read by {who}")
        same_there(tensors, got, f"{where}, read by {who}")
