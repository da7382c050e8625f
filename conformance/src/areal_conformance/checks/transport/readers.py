"""What a reader does with the tensors it was handed reaches nobody: other readers and later reads get the sender's.

Knows: a reader in another process that writes where it must not.
Does not know: how bytes are shared; a reader that dies of its own write has done no harm.
"""

from __future__ import annotations

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_tensors import SETS
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same
from areal_conformance.checks.transport.processes import same_there, well


@check("transport.reader.writes", level=Level.DISTRIBUTED, law=7, spec="weights", unless=("streams",), deadline_s=240.0)
def reader_writes(bench: TransportBench) -> None:
    """A reader that writes into what it was handed changes nothing for others, for later reads, or later versions."""
    controller, sender, scribbler = bench.transport(), bench.transport(), bench.peer("scribbler")
    for version, kind in enumerate(("plain", "plain", "dtypes"), 1):
        tensors = SETS[kind](version)
        offer = controller.open(version)
        bench.send(sender, offer, tensors)
        if scribbler.alive and scribbler.ask("scribble", offer=offer).died:
            bench.notes.append(f"version {version}: a reader that wrote into a tensor ended")
        where = f"{kind}, version {version}, after another reader wrote into its tensors, read by"
        same(tensors, bench.receive(bench.transport(), offer), f"{where} this process")
        got = well(bench.peer("receiver").ask("receive", offer=offer), where)
        same_there(tensors, got, f"{where} a third process")
        if scribbler.alive:
            got = well(scribbler.ask("receive", offer=offer), where)
            same_there(tensors, got, f"{where} the process that wrote, anew")
        controller.release(offer)
