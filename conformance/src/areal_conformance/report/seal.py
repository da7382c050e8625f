"""What makes a report worth publishing: a hash over its content, whether it still holds, what has overtaken it.

The hash is the SHA-256 of the report as JSON without the key `sha256`, keys sorted, no spaces, ASCII:

    python -c "import hashlib, json, sys; data = json.load(sys.stdin); del data['sha256']; print(hashlib.sha256(
        json.dumps(data, sort_keys=True, separators=(',', ':')).encode()).hexdigest())" < report.json

It shows that a file is the one that was published, to whoever has the hash from elsewhere; it proves no author.

Knows: the canonical form, which contract a report is about, and which checks it would owe today.
Does not know: how a report looks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_conformance.inventory import Inventory, read_inventory
from areal_conformance.run.plan import closed
from areal_conformance.run.profile import pinned_for, version_of
from areal_conformance.run.record import Record, plain, read_data, record_from
from areal_core.contract.errors import ConfigError
from areal_core.contract.version import CONTRACT

KEY = "sha256"


@frozen(kw_only=True)
class Seal:
    """What came of looking at a report file."""

    record: Record
    sha256: str
    """Of the content as it is now."""
    written: bool
    """Whether the file has a hash at all."""
    faults: tuple[str, ...]
    """Why it does not hold, one sentence each; none: it is as it was written."""
    expired: str
    """By what a report on another contract is overtaken; empty if it is on the present one."""
    outdated: str
    """Which checks of this suite it lacks; empty if it has all that a run like it would make."""

    @property
    def standing(self) -> str:
        """Return in a few words what the report is worth today: `current`, or why it is not."""
        unsealed = "" if self.written else "unsealed"
        broken = "does not hold" if self.written and self.faults else ""
        expired = f"expired: {self.expired}" if self.expired else ""
        outdated = f"outdated: {self.outdated}" if self.outdated else ""
        return "; ".join(filter(None, (broken, unsealed, expired, outdated))) or "current"


def digest(data: Mapping[str, Any]) -> str:
    """Return the hash of a report's content. Any: JSON."""
    content = {key: value for key, value in data.items() if key != KEY}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def sealed(record: Record) -> str:
    """Return the text of report.json, its hash in it."""
    data = plain(record)
    return json.dumps({**data, KEY: digest(data)}, indent=2, ensure_ascii=True) + "\n"


def look_at(path: Path) -> Seal:
    """Look whether a report.json, or the one in a folder, is as it was written, and says what its rows say.

    Raises:
        ConfigError: it is not there, no JSON, or not a report of this schema.
    """
    data = read_data(path)
    record, written, found = record_from(data), data.get(KEY, ""), digest(data)
    faults = []
    if not written:
        faults.append("it has no hash: an older suite wrote it")
    elif written != found:
        faults.append(f"its content was changed: the hash in it is {written}, that of its content {found}")
    again = closed(record, record.checks, record.seconds).verdict
    if again != record.verdict:
        faults.append(f"its verdict is {record.verdict!r}, its checks amount to {again!r}")
    return Seal(
        record=record,
        sha256=found,
        written=bool(written),
        faults=tuple(faults),
        expired=expired(record),
        outdated=outdated(record, read_inventory()),
    )


def expired(record: Record) -> str:
    """Return how the contract went on since the report; empty while its rules are the present ones."""
    now = {one: ".".join(map(str, CONTRACT[one])) for one in _roles(record) if one in CONTRACT}
    then = {one: record.contract.get(one, "none") for one in now}
    changed = [f"{one} contract {then[one]}, now {now[one]}" for one in now if then[one] != now[one]]
    return "; ".join(changed)


def outdated(record: Record, inventory: Inventory) -> str:
    """Return which checks came since; empty if the report has every one that its run would owe today.

    That is by role, level, ranks and the version of the contract it was held to. Claims do not matter: a check that
    is skipped by claim has a row. A provisional check is not missed, for it has no say in the verdict.

    Raises:
        ConfigError: it names a version of the contract that is none.
    """
    subject = record.subject
    owed = pinned_for(subject.role, inventory, level=subject.level, ranks=subject.ranks, contract=_held_to(record))
    lacking = sorted({key for key in owed if not inventory.checks[key].provisional} - {row.id for row in record.checks})
    if not lacking:
        return ""
    return f"it lacks {lacking[0]}" if len(lacking) == 1 else f"it lacks {len(lacking)} checks, e.g. {lacking[0]}"


def _held_to(record: Record) -> tuple[int, int]:
    named = [record.contract.get(role, "0.0") for role in _roles(record)]
    try:
        return min(map(version_of, named))
    except ValueError as error:
        raise ConfigError(
            f"the report names contract {', '.join(named)}", why="a version is two numbers: 1.2", fix="create it again"
        ) from error


def _roles(record: Record) -> tuple[str, ...]:
    role = record.subject.role
    return ("train", "infer") if role == "pair" else (role,)
