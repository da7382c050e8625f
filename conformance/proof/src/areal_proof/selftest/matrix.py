"""The kill matrix as committed, `matrix.json`: mutant -> the checks that kill it.

`declared` is what each mutant promises, `all` what a full run found; a mutant that was never in a full run has none.

Knows: the file, and how it is compared and renewed.
Does not know: how kills are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import cattrs
from attrs import field, frozen

from areal_proof.mutants import Mutant

PATH = Path(__file__).parent.with_name("matrix.json")


def _sorted(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(keys))


@frozen(kw_only=True)
class Line:
    """One mutant of the matrix."""

    of: str
    declared: tuple[str, ...] = field(converter=_sorted)
    all: tuple[str, ...] | None = None


Matrix = Mapping[str, Line]


def read_matrix(path: Path = PATH) -> Matrix:
    """Read the file."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    return converter.structure(json.loads(path.read_text(encoding="utf-8")), dict[str, Line])


def write_matrix(matrix: Matrix, path: Path = PATH) -> None:
    """Write the file, one line a mutant."""
    lines = [f"  {json.dumps(name)}: {json.dumps(cattrs.unstructure(line))}" for name, line in sorted(matrix.items())]
    body = ",\n".join(lines)
    path.write_text(f"{{\n{body}\n}}\n" if lines else "{}\n", encoding="utf-8")


def renewed(old: Matrix, mutants: Iterable[Mutant], found: Mapping[str, Iterable[str]]) -> dict[str, Line]:
    """Return the matrix of the mutants there are; `found` is what a full run saw of some or all of them."""
    new = {}
    for mutant in mutants:
        before = old.get(mutant.name)
        seen = tuple(sorted(found[mutant.name])) if mutant.name in found else before.all if before else None
        new[mutant.name] = Line(of=mutant.of, declared=mutant.killers, all=seen)
    return new


def differences(matrix: Matrix, mutants: Iterable[Mutant], found: Mapping[str, Iterable[str]]) -> list[str]:
    """Return one sentence for each thing in which the committed matrix is not what is declared and found."""
    told = []
    present = {mutant.name: mutant for mutant in mutants}
    told += [f"matrix.json has {name}, which is no mutant any more" for name in sorted(set(matrix) - set(present))]
    for name, mutant in sorted(present.items()):
        line = matrix.get(name)
        if line is None:
            told.append(f"matrix.json lacks {name}")
            continue
        if (line.of, line.declared) != (mutant.of, tuple(sorted(mutant.killers))):
            told.append(f"matrix.json has other killers declared for {name}")
        if name in found and line.all is not None:
            now, then = set(found[name]), set(line.all)
            told += [f"{name} is killed by {key} now, and was not" for key in sorted(now - then)]
            told += [f"{name} is not killed by {key} any more" for key in sorted(then - now)]
    return told
