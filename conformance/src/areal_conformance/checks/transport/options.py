"""Options of a transport change what they say, and no byte: its checks again with each variant of the adapter.

Knows: which checks see most of a transport, its ends in one process and in several; that processes of a run work in
folders of their own, and that those of workers are told no options.
Does not know: what an option means.
"""

from __future__ import annotations

import os
from functools import partial

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_tensors import plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same
from areal_conformance.checks.transport.processes import same_there, well
from areal_conformance.outcome import Violation, expect
from areal_conformance.varied import at_bounds, given, made_again, of_one_process, shown
from areal_core.contract.errors import ArealError, ConfigError, ResourceError, StorageError

_CHECKS = (
    "transport.bytes.dtypes",
    "transport.bytes.shapes",
    "transport.bytes.buckets",
    "transport.version.follow",
    "transport.abort.frees",
    "transport.close.clean",
    "transport.process.crosses",
    "transport.fault.controller_killed",
)


@check("transport.options.checks", level=Level.SINGLE, law=7, spec="weights", deadline_s=240.0)
async def again(bench: TransportBench) -> None:
    """With each variant's options bytes arrive, versions follow each other, and nothing is left."""
    await made_again(bench, _CHECKS)


@check("transport.options.shown", level=Level.SINGLE, law=8, spec="weights")
async def effect(bench: TransportBench) -> None:
    """Options with an effect that can be seen have it."""
    await shown(bench, lambda: given(bench.transport()))


@check("transport.options.bounds", level=Level.SINGLE, law=8, spec="weights")
def bounds(bench: TransportBench) -> None:
    """Options take the values at their bounds and refuse those beyond by name, before anything is built."""
    at_bounds(bench)


@check("transport.options.told", level=Level.SINGLE, law=7, spec="weights")
def options_told(bench: TransportBench) -> None:
    """What the controller's options say holds for ends that were made without any, as those of workers are."""
    controller, sender, receiver = bench.transport(small_buckets=True), bench.transport(), bench.transport()
    offer = bench.travelled(controller.open(9))
    own, other = (bench.within(partial(end.sink, offer)).bucket_bytes for end in (controller, sender))
    told = "a sink of the controller's own asks for buckets of"
    expect(own == other, f"{told} {own} bytes, and of the same offer one of a worker's for {other}")
    controller.release(offer)
    for name, variant in of_one_process(bench).items():
        controller = bench.transport(**variant.options)
        for version in (1, 2):
            offer = controller.open(version)
            _, (received,) = bench.carry(controller, sender, [receiver], offer, plain(version))
            same(plain(version), received, f"version {version}, offered with the options of {name!r}")
            controller.release(offer)


@check("transport.options.folders", level=Level.DISTRIBUTED, law=7, spec="weights", unless=("streams",), deadline_s=120)
def folders(bench: TransportBench) -> None:
    """A folder named from where the controller works is the same folder for participants that work elsewhere."""
    for option, others in bench.target.adapter.folders.items():
        told = os.path.relpath(bench.folder / option)
        controller = bench.transport(**{**others, option: told})
        sender, receiver = bench.peer("sender"), bench.peer("receiver")
        for one in (sender, receiver):
            well(one.ask("work_in", path=str(bench.temporary)), "working in another folder")
        where = f"{option}={told}, in a process that works elsewhere,"
        offer = controller.open(1)
        well(sender.ask("send", offer=offer, name="plain", seed=1), f"{where} sending")
        same_there(plain(1), well(receiver.ask("receive", offer=offer), f"{where} receiving"), where)
        controller.release(offer)
    if not bench.target.adapter.folders:
        bench.notes.append("the adapter names no option that is a folder")


@check("transport.options.no_folder", level=Level.SINGLE, law=7, spec="weights", unless=("streams",))
def no_folder(bench: TransportBench) -> None:
    """A folder that can be none is refused with StorageError, ResourceError or ConfigError, and the error names it."""
    for option, others in bench.target.adapter.folders.items():
        file = bench.folder / f"{option}-is-a-file"
        file.write_text("not a folder")
        where = f"opening a version with {option}={file.name}, a file,"
        try:
            bench.within(partial(bench.transport(**{**others, option: str(file)}).open, 1), where)
        except (StorageError, ResourceError, ConfigError) as error:
            expect(file.name in str(error), f"{where} is refused without its name: {error}")
        except ArealError as error:
            raise Violation(f"{where} is to be a StorageError, not {type(error).__name__}: {error}") from error
        else:
            raise Violation(f"{where} is not refused")
    if not bench.target.adapter.folders:
        bench.notes.append("the adapter names no option that is a folder")
