"""What a kind of device says of itself, and how it is counted and confined.

Knows: that none of it may need torch, or the device.
Does not know: any kind of device, or what engines do on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from areal_conformance.benches.static import HEAVY
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.device import REDUCTIONS, Device, SeenDevice

if TYPE_CHECKING:
    from areal_conformance.benches.static import StaticBench

_IDS = ("3", "5")
_SECOND = "AREAL_ANY_VISIBLE_DEVICES"


@check("device.names.itself", level=Level.STATIC, law=0, spec="device#name")
def names_itself(bench: StaticBench) -> None:
    """The device, its manifest and the name it is found by are one name; vendor and torch type are told."""
    device, name = _device(bench), bench.target.name
    expect(device.name == name, f"the device found as {name!r} calls itself {device.name!r}")
    expect(bench.manifest.devices == (name,), f"its manifest names the devices {bench.manifest.devices}")
    expect(device.vendor and device.torch_type, f"vendor {device.vendor!r} and torch type {device.torch_type!r}")


@check("device.counts.without_torch", level=Level.STATIC, law=0, spec="device#see")
def counts_without_torch(bench: StaticBench) -> None:
    """Schedulers and listings count devices where no torch is installed."""
    imports = bench.target.locator.imports
    if not imports and not bench.packaged:
        return
    bench.python(
        "import os\n"
        "from areal_core.plugins.devices import device_named\n"
        "from areal_core.plugins.registry import Registry\n"
        "registry = Registry()\n"
        f"for path in {list(imports)!r}:\n"
        "    registry.add_file(path)\n"
        f"device = device_named(registry, {bench.target.name!r})\n"
        "seen = [one.id for one in device.see(dict(os.environ))]\n"
        "print(json.dumps([seen, device.visible(os.environ), device.confine(seen), device.confine(())]))",
        absent=HEAVY,
    )


@check("device.ids.distinct", level=Level.STATIC, law=0, spec="device#SeenDevice")
def ids_distinct(bench: StaticBench) -> None:
    """No two devices share an id, and an id can stand in a list of them."""
    ids = [one.id for one in _device(bench).see({})]
    expect(len(set(ids)) == len(ids), f"two devices have one id: {ids}")
    expect(all(one and "," not in one and one != "-1" for one in ids), f"ids that cannot be listed: {ids}")


@check("device.visible.confines", level=Level.STATIC, law=0, spec="device#confine")
def visible_confines(bench: StaticBench) -> None:
    """A process confined to some devices sees these and no others; confined to none it sees none."""
    device = _device(bench)
    if not device.visible_variables:
        expect(device.confine(_IDS) == {}, f"no variable confines it, and it is confined by {device.confine(_IDS)}")
        expect(len(device.see({})) <= 1, "more than one is here, and no variable tells workers apart")
        return
    for kind in (device, _with_another_variable(device)):
        for ids in (_IDS, _IDS[1:]):
            confined = kind.confine(ids)
            for name in kind.visible_variables:
                seen = kind.visible({name: confined[name]}) if name in confined else "all that its shell left it"
                expect(seen == ids, f"a process confined to {ids} by {confined} may use, as {name} says, {seen}")
    hidden = device.confine(())
    expect(hidden, "nothing is set to hide every device of the kind")
    if set(hidden) & set(device.visible_variables):
        expect(device.visible(hidden) == (), f"with {hidden} a process sees {device.visible(hidden)}")


@check("device.visible.read", level=Level.STATIC, law=0, spec="device#visible")
def visible_read(bench: StaticBench) -> None:
    """A process may use what the first variable that is set names, up to an id of -1 or none; all where none is set."""
    device = _with_another_variable(_device(bench))
    first = device.visible_variables[0]
    for environ, ids in (
        ({}, _IDS),
        ({first: "5"}, ("5",)),
        ({first: " 3 , 5"}, _IDS),
        ({first: ""}, ()),
        ({first: "-1"}, ()),
        ({first: "3,-1,5"}, ("3",)),
        ({first: "3,,5"}, ("3",)),
        ({_SECOND: "5"}, ("5",)),
        ({_SECOND: ""}, ()),
        ({first: "3", _SECOND: "5"}, ("3",) if first != _SECOND else ("5",)),
    ):
        seen = device.visible(environ)
        expect(seen == ids, f"where {_IDS} are, a process with {environ} may use {ids}, and it is told {seen}")


@check("device.reductions.known", level=Level.STATIC, law=8, spec="device#reductions")
def reductions_known(bench: StaticBench) -> None:
    """Collectives are named, and what they reduce with are words of the contract; a sum is the least."""
    device = _device(bench)
    unknown = sorted(set(device.reductions) - set(REDUCTIONS))
    expect(not unknown, f"unknown reductions {unknown}; there are {', '.join(REDUCTIONS)}")
    expect(device.collective and "sum" in device.reductions, f"{device.collective!r} reduces with {device.reductions}")


def _with_another_variable(device: Device) -> Device:
    """Return the kind of device where two are here and one more variable confines a process."""
    seen = [SeenDevice(id=number, name="any") for number in _IDS]
    return attrs.evolve(device, see=lambda environ: seen, visible_variables=(*device.visible_variables, _SECOND))


def _device(bench: StaticBench) -> Device:
    found = bench.built()
    expect(isinstance(found, Device), f"the factory returned a {type(found).__name__}, no Device")
    assert isinstance(found, Device)
    return found
