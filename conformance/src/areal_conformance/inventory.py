"""The pinned list of checks, so that a check that vanishes is seen: `inventory.json`.

    python -m areal_conformance.inventory             what would change
    python -m areal_conformance.inventory --write     pin what is there now

A pinned id that is gone must be named: `--retire ID` keeps it forever, so that it is never used again;
`--forget ID` is for one that was never released.

The file says enough of each check to list it where the libraries it imports are not installed.

Knows: the file, and how it may change.
Does not know: how the checks that ran are compared with it (`run.profile`).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cattrs
from attrs import Factory, evolve, field, fields, frozen

from areal_conformance.check import Check, Tier

PATH = Path(__file__).with_name("inventory.json")


@frozen(kw_only=True)
class Pinned:
    """What is promised of a check: the fields of `check.Check` that need none of its code."""

    role: str
    level: int = field(converter=int)
    tier: Tier = field(converter=Tier)
    ranks: int = 1
    since: str = "1.0"
    provisional: bool = False
    law: int = 0
    spec: str = ""
    requires: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    title: str = ""


@frozen(kw_only=True)
class Inventory:
    """Pinned checks by id, and ids that must not come back."""

    checks: dict[str, Pinned] = Factory(dict)
    retired: tuple[str, ...] = ()


def pin(check: Check) -> Pinned:
    """Return what is promised of a check."""
    shared = [field.name for field in fields(Pinned) if field.name != "since"]
    return Pinned(since=".".join(map(str, check.since)), **{name: getattr(check, name) for name in shared})


@functools.cache
def read_inventory(path: Path = PATH) -> Inventory:
    """Read the file."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    return converter.structure(json.loads(path.read_text(encoding="utf-8")), Inventory)


def to_json(inventory: Inventory) -> str:
    """Return the file's text: one line a check, so that a change is one line of a diff."""
    data: dict[str, Any] = cattrs.unstructure(inventory)
    lines = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(data["checks"].items())]
    checks = ",\n".join(lines)
    return f'{{\n  "checks": {{\n{checks}\n  }},\n  "retired": {json.dumps(sorted(data["retired"]))}\n}}\n'


def differences(inventory: Inventory, checks: Mapping[str, Check]) -> list[str]:
    """Return one sentence for each thing in which the checks are not what is pinned."""
    told = [f"{key} is a retired id: choose another" for key in sorted(set(inventory.retired) & set(checks))]
    for key in sorted({*inventory.checks, *checks}):
        if key not in checks:
            told.append(f"{key} is pinned and gone")
        elif key not in inventory.checks:
            told.append(f"{key} is new")
        elif inventory.checks[key] != pin(checks[key]):
            told.append(f"{key} is pinned as {inventory.checks[key]} and is {pin(checks[key])}")
    return told


def renewed(
    inventory: Inventory, checks: Mapping[str, Check], retire: Iterable[str] = (), forget: Iterable[str] = ()
) -> Inventory:
    """Return the inventory of the checks there are now.

    Raises:
        ValueError: a retired id is used, or a pinned check is gone and neither retired nor forgotten.
    """
    retired = {*inventory.retired, *retire}
    back = sorted(retired & set(checks))
    gone = sorted(set(inventory.checks) - set(checks) - retired - set(forget))
    if back:
        raise ValueError(f"retired ids are never used again: {', '.join(back)}")
    if gone:
        raise ValueError(f"pinned and gone: {', '.join(gone)}; say --retire ID, or --forget ID if never released")
    return evolve(inventory, checks={key: pin(check) for key, check in checks.items()}, retired=tuple(sorted(retired)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences, or write the file; 1 if something differs and nothing was written."""
    from areal_conformance.checks import AREAS, all_checks, extra_fix, missing

    parser = argparse.ArgumentParser(prog="python -m areal_conformance.inventory", description="The pinned checks.")
    parser.add_argument("--write", action="store_true", help="pin the checks there are now")
    parser.add_argument("--retire", action="append", default=[], metavar="ID", help="a released check that is gone")
    parser.add_argument("--forget", action="append", default=[], metavar="ID", help="a gone check never released")
    options = parser.parse_args(arguments)
    lacking = sorted({name for area in AREAS for name in missing(area)})
    if lacking:
        sys.stderr.write(f"the checks cannot be imported without {', '.join(lacking)}: {extra_fix()}\n")
        return 2
    before = read_inventory()
    told = differences(before, all_checks())
    sys.stdout.write("".join(f"{line}\n" for line in told) or "in step\n")
    if not options.write:
        return 1 if told else 0
    try:
        text = to_json(renewed(before, all_checks(), options.retire, options.forget))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
