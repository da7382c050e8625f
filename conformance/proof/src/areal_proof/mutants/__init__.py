"""Deliberately broken backends, each with one defect: what the suite must catch, to be believed.

    @mutant("infer/reference", killers=("infer.close.callers",), row="dead-peer")
    class CloseForgetsTheFrozen(ReferenceInferenceEngine):
        \"\"\"Fails running callers when it is closed, and forgets those a pause had frozen.\"\"\"

A mutant that changes one call needs no class: it is a row of a table, or a function (`mutants.rows`).

Knows: how a broken class takes the place of a backend, and which mutants there are.
Does not know: how they are killed (`self_test`).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import attrs
from attrs import field, frozen

from areal_conformance.target import Locator, Target, locate
from areal_core.contract.errors import BackendNotFound
from areal_core.plugins.claims import Claim
from areal_core.plugins.registry import Registry

Breaks = Callable[[Target], Target]
"""Turns the whole backend's target into the broken one."""


@frozen(kw_only=True)
class Mutant:
    """One defect. `of` is the backend it is made from: `infer/second`, `train/reference`, ..."""

    name: str
    of: str
    defect: str
    killers: tuple[str, ...] = field(converter=tuple[str, ...])
    """Checks that must fail on it; others may."""
    incident: str = ""
    """Where it happened for real."""
    row: str = ""
    """Row of the table of incidents (`incidents.ROWS`) it stands for."""
    ranks: int = 1
    breaks: Breaks

    @property
    def role(self) -> str:
        """Return the role of the backend it breaks."""
        return self.of.partition("/")[0]

    def target(self, locator: Locator | None = None) -> Target:
        """Return the broken target; the locator's device and ranks are kept."""
        role, _, name = self.of.partition("/")
        given = locator or Locator(role=role, name=name, ranks=self.ranks)
        whole = locate(attrs.evolve(given, role=role, name=name, mutant=""))
        broken = self.breaks(whole)
        origin = broken.origin if broken.origin != whole.origin else f"mutant {self.name}"
        return attrs.evolve(broken, locator=attrs.evolve(broken.locator, mutant=self.name), origin=origin)


def replacing(role: str, factory: Callable[..., Any], *, claims: Mapping[str, Claim] | None = None) -> Breaks:
    """Break a target by building another class under its name; with `claims`, by claiming otherwise too.

    For a pair, the side named by `role` is replaced in the registry both sides build from.
    """

    def breaks(whole: Target) -> Target:
        side = whole.parts.get(role, whole)
        assert side.manifest is not None
        manifest = attrs.evolve(side.manifest, claims={**side.manifest.claims, **(claims or {})})
        registry = Registry(entries={(role, side.name): (manifest, factory)})
        for path in whole.locator.imports:
            registry.add_file(path)
        if not whole.parts:
            return attrs.evolve(whole, registry=registry, manifest=manifest)
        parts = {key: attrs.evolve(part, registry=registry) for key, part in whole.parts.items()}
        parts[role] = attrs.evolve(parts[role], manifest=manifest)
        return attrs.evolve(whole, registry=registry, parts=parts)

    return breaks


def mutant(
    of: str,
    *,
    killers: tuple[str, ...],
    incident: str = "",
    row: str = "",
    ranks: int = 1,
    claims: Mapping[str, Claim] | None = None,
    side: str | None = None,
    breaks: Breaks | None = None,
) -> Callable[[Any], Any]:
    """Mark a class (or a function with `breaks`-like behaviour) as a mutant; its docstring's first line is the defect.

    The class is built in place of the backend `of`. `side` is the role it plays where `of` is a pair.
    A plain function marked so is itself the `breaks`: it takes the whole target and returns the broken one.
    """

    def mark(broken: Any) -> Any:
        role = side or of.partition("/")[0]
        own = breaks or (replacing(role, broken, claims=claims) if inspect.isclass(broken) else broken)
        defect = (inspect.getdoc(broken) or "").strip().partition("\n")[0]
        assert defect, f"mutant {broken.__name__} has no docstring: its first line is the defect"
        broken.__mutant__ = Mutant(
            name=broken.__name__,
            of=of,
            defect=defect,
            killers=killers,
            incident=incident,
            row=row,
            ranks=ranks,
            breaks=own,
        )
        return broken

    return mark


def _marked(value: Any) -> Iterable[Mutant]:
    """Return the mutants a name of a module stands for. Any: whatever a module holds."""
    if isinstance(value, tuple):
        return (one for one in value if isinstance(one, Mutant))
    marked = value if isinstance(value, Mutant) else getattr(value, "__dict__", {}).get("__mutant__")
    return (marked,) if isinstance(marked, Mutant) else ()


@functools.cache
def all_mutants() -> Mapping[str, Mutant]:
    """Return every mutant by name, sorted."""
    return collect(sys.modules[__name__])


def collect(package: ModuleType) -> dict[str, Mutant]:
    """Return the mutants that the modules of a package define, by name, sorted. Imports them.

    Raises:
        ValueError: two mutants share a name.
    """
    found: dict[str, Mutant] = {}
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}."):
        for marked in itertools.chain(*map(_marked, vars(importlib.import_module(module.name)).values())):
            if found.setdefault(marked.name, marked) is not marked:
                raise ValueError(f"mutant {marked.name} is there twice, again in {module.name}")
    return dict(sorted(found.items()))


def mutant_named(name: str) -> Mutant:
    """Return one mutant.

    Raises:
        BackendNotFound: there is none of that name.
    """
    try:
        return all_mutants()[name]
    except KeyError:
        near = difflib.get_close_matches(name, all_mutants(), n=3)
        raise BackendNotFound(
            f"there is no mutant {name!r}",
            why=f"there are {len(all_mutants())}",
            fix=f"did you mean {' or '.join(near)}?"
            if near
            else "areal conformance explain CHECK lists those it kills",
        ) from None
