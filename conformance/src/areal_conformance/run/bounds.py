"""Bounds of figures that whoever makes a run sets: `areal conformance run --level 5 --bounds FILE`.

    ["step of a plain loop / step"]
    at_least = 0.9

    ["memory of training / that of a plain loop"]
    at_most = 1.5

A bound takes the place of what the adapter promises of the same figure, so it may be stricter or looser. The report
says which bounds were held, and whose they are.

Knows: the file, and how it is joined with the adapter's promises.
Does not know: figures (a check names its own) or when they are judged (`benches.base`).
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import attrs

from areal_conformance.adapter import Promise
from areal_conformance.check import Check, Level
from areal_conformance.run.asked import Asked
from areal_conformance.run.record import Bound
from areal_conformance.target import Target
from areal_core.contract.errors import ConfigError

ENDS = ("at_least", "at_most")
ADAPTER = "the adapter"
EXAMPLE = 'as ["step of a plain loop / step"] and below it at_least = 0.9'


def figures_of(checks: Iterable[Check], target: Target) -> tuple[str, ...]:
    """Return every figure that the checks of a target tell."""
    return tuple(name for check in checks for name in check.figures_in(target.adapter.dtypes))


def bounds_asked(asked: Asked, target: Target, figures: Collection[str]) -> dict[str, Promise]:
    """Return the bounds of the file that a run was given; none without a file.

    Raises:
        ConfigError: no file, no toml, a figure that is not told, an end that is missing, unknown or no number; or the
            run measures nothing.
    """
    if not asked.bounds:
        return {}
    if not figures:
        raise ConfigError(
            f"--bounds {asked.bounds} would judge nothing",
            why=f"figures are told of train and infer, none of {target.role}",
            fix="leave it out",
        )
    if asked.level < Level.NUMBERS:
        raise ConfigError(
            f"--bounds {asked.bounds} would judge nothing",
            why=f"figures are told at level {Level.NUMBERS:d}, not at {asked.level}",
            fix=f"--level {Level.NUMBERS:d}",
        )
    return read_bounds(Path(asked.bounds), figures)


def bounded(target: Target, bounds: Mapping[str, Promise]) -> Target:
    """Return the target with these bounds in the place of its adapter's."""
    promises = {**target.adapter.promises, **bounds}
    return attrs.evolve(target, adapter=attrs.evolve(target.adapter, promises=promises))


def bounds_told(target: Target, bounds: Mapping[str, Promise], file: str) -> tuple[Bound, ...]:
    """Return for the report what figures are held to: bounds of the file, and those of the adapter."""
    return tuple(
        Bound(
            figure=figure,
            at_least=promise.at_least if math.isfinite(promise.at_least) else None,
            at_most=promise.at_most if math.isfinite(promise.at_most) else None,
            by=Path(file).name if figure in bounds else ADAPTER,
        )
        for figure, promise in sorted(target.adapter.promises.items())
    )


def read_bounds(path: Path, figures: Collection[str]) -> dict[str, Promise]:
    """Read the file: figure -> bounds. Every fault in it is told at once.

    Raises:
        ConfigError: no file, no toml, a figure that is not told, an end that is missing, unknown or no number.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the bounds {path} cannot be read", why=str(error), fix="give a file of toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the bounds {path} are no toml", why=str(error), fix=EXAMPLE) from error
    faults = [f"{name}: {fault}" for name, given in data.items() for fault in _faults(name, given, figures)]
    if not data:
        faults.append("it holds no figure")
    if faults:
        raise ConfigError(
            f"the bounds {path} cannot be held",
            why="\n       ".join(faults),
            fix=f"{EXAMPLE}; areal conformance explain CHECK lists the figures of a check",
        )
    return {name: Promise(**given) for name, given in data.items()}


def _faults(name: str, given: object, figures: Collection[str]) -> list[str]:
    faults = []
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=1)
        faults.append(f"no such figure is told of this backend{f'; did you mean {near[0]!r}?' if near else ''}")
    if not isinstance(given, Mapping):
        return [*faults, f"is no table of {' and '.join(ENDS)}"]
    faults += [f"unknown field {key}; there are {', '.join(ENDS)}" for key in given if key not in ENDS]
    ends = {key: given[key] for key in ENDS if key in given}
    wrong = [key for key, value in ends.items() if isinstance(value, bool) or not _is_number(value)]
    faults += [f"{key} is {ends[key]!r}, which is no finite number" for key in wrong]
    if not ends:
        faults.append(f"has neither {' nor '.join(ENDS)}")
    if len(ends) == 2 and not wrong and ends["at_least"] > ends["at_most"]:
        faults.append(f"at_least {ends['at_least']:g} is above at_most {ends['at_most']:g}: nothing is within")
    return faults


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
