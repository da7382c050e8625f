"""What people said of mutants that survived: `mutation.toml` in the package of the module that is changed.

    [[mutant]]
    path = "areal_mine/engine.py"
    function = "Engine.pause"
    operator = "boundary"
    before = "left < 1"
    after = "left <= 1"
    verdict = "equivalent"
    why = "left is never 1 here: it is counted in pairs"

A mutant is matched by what it says, not by its line; `occurrence = 2` tells apart those that are alike.

Knows: the file and its three verdicts.
Does not know: how a mutant is made or dies.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

import attrs
from attrs import field, frozen

from areal_conformance.mutate.mutants import Key
from areal_core.contract.errors import ConfigError

NAME = "mutation.toml"
_KEYS = ("path", "function", "operator", "before", "after", "occurrence", "verdict", "why")


class Verdict(StrEnum):
    """Why a mutant that survives may live, or that it may not."""

    EQUIVALENT = "equivalent"
    """Nobody could tell it from the backend as it is."""
    OUT_OF_CONTRACT = "out of contract"
    """It does something else that no rule of the contract is about."""
    GAP = "gap"
    """A check should have seen it."""


@frozen(kw_only=True)
class Said:
    """One entry."""

    verdict: Verdict = field(converter=Verdict)
    why: str
    file: str = ""

    @property
    def excused(self) -> bool:
        """Tell whether the mutant leaves the score."""
        return self.verdict is not Verdict.GAP


Triage = Mapping[Key, Said]


def read_triage(paths: Iterable[Path]) -> Triage:
    """Read the files that there are.

    Raises:
        ConfigError: one is no triage file; says which entry is wrong.
    """
    found: dict[Key, Said] = {}
    for path in paths:
        if not path.is_file():
            continue
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read", why=str(error), fix="it is TOML, of [[mutant]] tables"
            ) from error
        for number, entry in enumerate(entries, 1):
            key, said = _entry(path, number, entry)
            if key in found:
                raise _wrong(path, number, "it says again what an entry above says", "remove one")
            found[key] = said
    return found


def _entry(path: Path, number: int, entry: object) -> tuple[Key, Said]:
    if not isinstance(entry, dict):
        raise _wrong(path, number, "it is no table", "write [[mutant]]")
    strange = sorted(set(entry) - set(_KEYS))
    missing = [name for name in _KEYS if name != "occurrence" and not str(entry.get(name, "")).strip()]
    if strange or missing:
        why = f"unknown: {', '.join(strange)}" if strange else f"missing: {', '.join(missing)}"
        raise _wrong(path, number, why, f"an entry has {', '.join(_KEYS)}; only occurrence may be left out")
    if entry["verdict"] not in tuple(Verdict):
        raise _wrong(
            path, number, f"verdict {entry['verdict']!r}", f"write one of {', '.join(map(repr, map(str, Verdict)))}"
        )
    named = {name: entry[name] for name in _KEYS[:6] if name in entry}
    return Key(**named), Said(verdict=entry["verdict"], why=entry["why"], file=str(path))


def _wrong(path: Path, number: int, why: str, fix: str) -> ConfigError:
    return ConfigError(f"entry {number} of {path} is wrong", why=why, fix=fix)


def stale(triage: Triage, keys: Iterable[Key], paths: Iterable[str]) -> list[Key]:
    """Return entries for modules that were looked at, and for a mutant that is none any more.

    An edit that a person wrote may be in a file that is not read now.
    """
    known, looked = set(keys), set(paths)
    return [key for key in triage if key.path in looked and key not in known and key.operator != "edit"]


def suggestion(keys: Iterable[Key]) -> str:
    """Return entries to be filled in."""
    return "\n".join(_written(key) for key in keys)


def _written(key: Key) -> str:
    lines = ["[[mutant]]"]
    for name, value in attrs.asdict(key).items():
        if name != "occurrence" or value != 1:
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join([*lines, 'verdict = ""  # equivalent, out of contract, or gap', 'why = ""', ""])
