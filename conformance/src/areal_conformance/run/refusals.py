"""What makes a run pointless, found before its first check: a library or device that is absent, an adapter at odds
with the suite. Each would otherwise show as a hundred failures of a backend that has done nothing wrong.

Knows: what a machine must have, and what an adapter may name.
Does not know: how a run is prepared (`plan`).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Collection, Iterable
from importlib.util import find_spec

from areal_conformance.check import STATIC, Level
from areal_conformance.checks import extra_fix, missing
from areal_conformance.run.asked import Asked
from areal_conformance.target import Locator, Target
from areal_conformance.zoo.architectures import ARCHITECTURES
from areal_conformance.zoo.traits import TRAITS
from areal_core.contract.abilities import ABILITIES
from areal_core.contract.device import CPU, Device
from areal_core.contract.errors import ConfigError, EngineMissing, ResourceError
from areal_core.plugins.devices import device_named, seen_kinds
from areal_core.plugins.registry import Registry, default_registry

OTHER_OPTIONS = ("weights.kv_recomputed",)
"""Keys of an adapter's options that are no abilities: how to switch one off, for the check that compares."""
ENGINES = ("train", "infer", "pair")


def refuse_absent(
    asked: Asked,
    locator: Locator,
    *,
    found: Callable[[str], object] = find_spec,
    kinds: Callable[[Registry], Collection[str]] = seen_kinds,
) -> None:
    """Refuse a run that looks further than the static checks where what those need is not here.

    Raises:
        EngineMissing: the suite's own libraries are not installed.
        BackendNotFound: there is no such kind of device.
        ResourceError: the machine has no device of the kind.
    """
    if asked.level == Level.STATIC or (asked.only and all(key.startswith(f"{STATIC}.") for key in asked.only)):
        return
    lacking = missing(locator.role, found)
    if lacking:
        raise EngineMissing(
            f"the checks of the role {locator.role} beyond --level 0 need {', '.join(lacking)}",
            why="the suite makes models, batches and tensors of its own to compare with",
            fix=extra_fix(),
        )
    if locator.role not in ENGINES or locator.device == CPU:
        return
    registry = default_registry()
    for path in locator.imports:
        registry.add_file(path)
    device, seen = device_named(registry, locator.device), kinds(registry)
    if device.name not in seen and not _torch_sees(device):
        raise ResourceError(
            f"there is no {device.name} device here",
            why=f"seen are {', '.join(sorted(seen))}",
            fix="run on a machine with that device, or give --device cpu or --level 0; see areal doctor",
        )


def refuse_adapter(target: Target, ids: Iterable[str], figures: Collection[str] = ()) -> None:
    """Refuse an adapter that names what is not there: it would be without effect, and nobody would notice.

    Raises:
        ConfigError: lists every fault.
    """
    known, adapter = set(ids), target.adapter
    faults: list[str] = []
    for key, given in adapter.tolerances.items():
        if key not in known:
            faults.append(f"tolerances: there is no check {key!r}{_near(key, known)}")
        if not given.why.strip():
            faults.append(f"tolerances[{key!r}]: `why` is empty; it is printed in the report")
    strange = [name for name in adapter.promises if figures and name not in figures]
    faults += [f"promises: no check tells {name!r}{_near(name, figures)}" for name in strange]
    words = {*ABILITIES.get(target.role, ()), *OTHER_OPTIONS}
    for key in adapter.options:
        if key and key not in words:
            faults.append(f"options: {key!r} is no ability of the role {target.role}{_near(key, words)}")
    for field, named, known_words in (
        ("architectures", adapter.architectures, ARCHITECTURES),
        ("traits", adapter.traits, TRAITS),
    ):
        strange = [word for word in named if word not in known_words]
        faults += [f"{field}: the zoo has no {word!r}{_near(word, known_words)}" for word in strange]
    if adapter.patience <= 0:
        faults.append(f"patience: {adapter.patience:g} multiplies every deadline, so it must be above 0")
    if faults:
        adapter_name = target.manifest.conformance if target.manifest else ""
        raise ConfigError(
            f"the conformance adapter {adapter_name or 'in use'} makes impossible statements",
            why="\n       ".join(faults),
            fix="fix it; areal conformance list and areal backends NAME show the words",
        )


def _near(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _torch_sees(device: Device) -> bool:
    """Ask torch, which also sees devices whose drivers leave no file we know."""
    module = getattr(importlib.import_module("torch"), device.torch_type, None)
    return device.torch_type != CPU and bool(module is not None and module.is_available())
