"""What makes a report worth publishing: a hash over its content, whether it still holds, when it expires.

The hash is the SHA-256 of the report as JSON without the key `sha256`, keys sorted, no spaces, ASCII:

    python -c "import hashlib, json, sys; data = json.load(sys.stdin); del data['sha256']; print(hashlib.sha256(
        json.dumps(data, sort_keys=True, separators=(',', ':')).encode()).hexdigest())" < report.json

It shows that a file is the one that was published, to whoever has the hash from elsewhere; it proves no author.

Knows: the canonical form, and which contract a report is about.
Does not know: how a report looks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_conformance.run.plan import closed
from areal_conformance.run.record import Record, plain, read_data, record_from
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
    return Seal(record=record, sha256=found, written=bool(written), faults=tuple(faults), expired=expired(record))


def expired(record: Record) -> str:
    """Return how the contract went on since the report; empty while its rules are the present ones."""
    role = record.subject.role
    roles = ("train", "infer") if role == "pair" else (role,)
    now = {one: ".".join(map(str, CONTRACT[one])) for one in roles if one in CONTRACT}
    then = {one: record.contract.get(one, "none") for one in now}
    changed = [f"{one} contract {then[one]}, now {now[one]}" for one in now if then[one] != now[one]]
    return "; ".join(changed)
