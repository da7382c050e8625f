"""What a name of another system is called here.

Knows: the tables of names, and how much of a dotted name somebody may have written.
Does not know: errors or terminals; `areal_core` asks `foreign_names` when a key is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from areal_config.names.areal import NAMES as AREAL
from areal_config.names.name import Name, Names
from areal_config.names.trl import NAMES as TRL
from areal_config.names.verl import NAMES as VERL

SYSTEMS: Mapping[str, Names] = {"TRL": TRL, "verl": VERL, "AReaL": AREAL}

_MANY = 3


@frozen
class Answer:
    """A name of a system that was meant, and what it is here."""

    system: str
    theirs: str
    name: Name

    def __str__(self) -> str:
        """Return it as a sentence."""
        what = " and ".join(repr(key) for key in self.name.ours)
        said = f"is called {what}" if what else "has no equal"
        return f"{self.system}'s {self.theirs} {said}" + (f" ({self.name.note})" if self.name.note else "")


def foreign_names(key: str, value: object = None) -> str:
    """Extension `foreign_names`: what an unknown key is called here, with all that stands under it; empty if nobody's.

    Example: foreign_names("learning_rate") == "TRL's learning_rate is called 'actor.optimizer.lr'"
    """
    found: list[str] = []
    for leaf in _leaves(key, value):
        found += [text for answer in answers(leaf) if (text := str(answer)) not in found]
    more = f"; and {len(found) - _MANY} more" if len(found) > _MANY else ""
    return "; ".join(found[:_MANY]) + more


def answers(word: str) -> list[Answer]:
    """Return what systems mean by a name, the exact ones if there are any; by its last word where nothing else fits."""
    for fits in (_exact, _end_of_theirs, _theirs_at_the_end, _last_word):
        found = [
            Answer(system, theirs, name)
            for system, names in SYSTEMS.items()
            for theirs, name in names.items()
            if fits(word, theirs)
        ]
        different = _different(found)
        if different and (fits is not _last_word or len(different) == 1):  # a last word such as `path` says too little
            return different
    return []


def _different(found: Sequence[Answer]) -> list[Answer]:
    """Return the answers that say different things, the first of each."""
    first: dict[Name, Answer] = {}
    for answer in found:
        first.setdefault(answer.name, answer)
    return list(first.values())


def _leaves(key: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key


def _exact(word: str, theirs: str) -> bool:
    return word == theirs


def _end_of_theirs(word: str, theirs: str) -> bool:
    return theirs.endswith(f".{word}")


def _theirs_at_the_end(word: str, theirs: str) -> bool:
    return word.endswith(f".{theirs}")


def _last_word(word: str, theirs: str) -> bool:
    last = word.rpartition(".")[2]
    return len(last) > 1 and theirs.rpartition(".")[2] == last
