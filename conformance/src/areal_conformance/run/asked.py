"""What a run was asked for, from the command line or from pytest's options.

Knows: the questions, and which plugin an answer means.
Does not know: how anything is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from attrs import field, frozen

from areal_conformance.check import CHECKED_ROLES
from areal_conformance.proof import proof
from areal_conformance.target import Locator
from areal_core.contract.errors import BackendNotFound, ConfigError
from areal_core.contract.version import ROLES
from areal_core.plugins.registry import Registry

LEVEL = 4
"""Everything that gives a verdict; 5 only records numbers."""
MOST_PATIENT = 1000.0
"""Above it a check that hangs would hang for days."""


def _paths(values: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    return tuple(str(Path(value).resolve()) for value in values)


@frozen(kw_only=True)
class Asked:
    """One run. Exactly one of backend, pair and mutant names the target."""

    backend: str = ""
    role: str = ""
    """Empty where the name is unambiguous."""
    pair: str = ""
    mutant: str = ""
    device: str = "cpu"
    ranks: int = 0
    """0 means as many as the mutant needs, else 1."""
    level: int = field(default=LEVEL)
    only: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Ids of the checks to make, `*` for any part; the profile stays whole: the verdict is `incomplete` at best."""
    failed_in: str = ""
    """A report: make those of its checks that did not pass."""
    imports: tuple[str, ...] = field(default=(), converter=_paths)
    jobs: int = 0
    """Processes that make checks at once; 0 leaves it to the suite."""
    ledger: str = ""
    patience: float = field(default=1.0)
    """Multiplies every deadline."""
    contract: str = ""
    """An older minor of the role's contract: only checks of rules that it has. Empty: the version of this core."""
    zoo: int = 0
    """Models of each family that are drawn; 0 leaves the number to the suite."""
    bounds: str = ""
    """A file: what figures of level 5 are held to, in the place of what the adapter promises."""

    @patience.validator
    def _waits(self, _attribute: object, value: float) -> None:
        if not 0 < value <= MOST_PATIENT:
            raise ConfigError(
                f"--patience {value:g} is no factor of patience",
                why=f"it multiplies every deadline: above 0, and {MOST_PATIENT:g} at most",
                fix="--patience 4",
            )

    @level.validator
    def _is_a_level(self, _attribute: object, value: int) -> None:
        if not 0 <= value <= 5:
            raise ConfigError(f"there is no level {value}", why="levels are 0 to 5", fix="areal conformance list")


def names_one_target(asked: Asked) -> None:
    """Refuse what cannot be meant, before anything is looked up.

    Raises:
        ConfigError: none or several targets are named, or no number of ranks.
    """
    named = [word for word in (asked.backend, asked.pair, asked.mutant) if word]
    if len(named) != 1:
        told = f"{len(named)} targets are named" if named else "no target is named"
        raise ConfigError(told, fix="give one of --backend NAME, --pair TRAIN+INFER, --mutant NAME")
    if asked.zoo < 0:
        raise ConfigError(f"--zoo {asked.zoo} is not a number of models", fix="--zoo 30, or leave it out")
    if asked.jobs < 0:
        raise ConfigError(f"--jobs {asked.jobs} is not a number of processes", fix="--jobs 1, or leave it out")
    if asked.ranks < 0:
        raise ConfigError(f"--ranks {asked.ranks} is not a number of ranks", fix="--ranks 1, or leave it out")


def locator_of(asked: Asked) -> Locator:
    """Return the locator of what was asked for.

    Raises:
        ConfigError: none or several targets are named, or the role must be given.
        BackendNotFound: no role has the name.
    """
    names_one_target(asked)
    if asked.mutant:
        return _mutant(asked)
    role = "pair" if asked.pair else asked.role or _only_role(asked.backend, asked.imports)
    if role not in CHECKED_ROLES:
        raise ConfigError(f"no checks for the role {role!r}", why=f"roles are {', '.join(CHECKED_ROLES)}")
    return _locator(asked, role, asked.pair or asked.backend, asked.ranks or 1)


def _mutant(asked: Asked) -> Locator:
    found = proof().mutant_named(asked.mutant)
    role, _, name = found.of.partition("/")
    return _locator(asked, role, name, asked.ranks or found.ranks, mutant=found.name)


def _locator(asked: Asked, role: str, name: str, ranks: int, *, mutant: str = "") -> Locator:
    return Locator(
        role=role,
        name=name,
        device=asked.device,
        ranks=ranks,
        imports=asked.imports,
        mutant=mutant,
        patience=asked.patience,
        zoo=asked.zoo,
    )


def _only_role(name: str, imports: Iterable[str]) -> str:
    registry = Registry()
    for path in imports:
        registry.add_file(path)
    checked = [role for role in ROLES if role in CHECKED_ROLES]
    roles = [role for role in checked if name in registry.names(role)]
    if len(roles) == 1:
        return roles[0]
    if roles:
        raise ConfigError(
            f"{name!r} plays {len(roles)} roles", why=f"{', '.join(roles)}", fix=f"--backend {name} --role {roles[0]}"
        )
    if "+" in name:
        raise ConfigError(f"{name!r} is a pair", fix=f"--pair {name}")
    installed = [f"{role}: {', '.join(registry.names(role))}" for role in checked if registry.names(role)]
    raise BackendNotFound(
        f"nothing named {name!r} is installed", why="installed are " + "; ".join(installed), fix="areal backends"
    )
