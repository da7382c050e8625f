"""The ledger of known failures, `conformance.toml`: read strictly, applied strictly.

    [[known]]
    check   = "train.checkpoint.reshard"       # exact id
    kind    = "upstream"                       # bug | not-yet | upstream | flaky | hang
    match   = "hccl timeout"                   # words of the failure; another failure still fails
    reason  = "torch_npu 2.8 deadlocks on uneven all-gather"
    issue   = "https://example.org/123"
    expires = 2030-03-31
    device  = "npu"                            # optional narrowing, as are the next two
    backend = "megatron"
    versions = { torch_npu = "<2.9" }

A check that is listed still runs, and must fail as described: if it passes, the entry is stale, and that is a
failure. `flaky` may pass or fail; `hang` is the only kind that is not run. Both cap the verdict at `partial`.

Knows: the rules.
Does not know: where the file lies (`plan`), what day it is (it is told).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from attrs import Factory, field, frozen
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from areal_conformance.outcome import Outcome, Result
from areal_core.contract.errors import ConfigError

KINDS = ("bug", "not-yet", "upstream", "flaky", "hang")
HOW: Mapping[type, str] = {date: ", as 2030-01-31 without quotes", str: " in quotes"}
MAX_MATCH = 80
_PLACE = re.compile(r" at [^ ]+:\d+$")
REMEDIES = (
    "Remedies, in this order: fix the backend; else a looser tolerance in its adapter, with the reason; "
    "else take back the claim; else an entry in conformance.toml (areal conformance ledger suggest REPORT)."
)


@frozen(kw_only=True)
class Known:
    """One entry."""

    check: str = field()
    kind: str = field()
    match: str = field()
    reason: str = field()
    issue: str = field()
    expires: date = field()
    device: str = ""
    backend: str = ""
    versions: Mapping[str, str] = Factory(dict)

    def applies(self, *, device: str, backend: str) -> bool:
        """Tell whether the entry speaks of this run."""
        if (self.device and self.device != device) or (self.backend and self.backend not in backend.split("+")):
            return False
        return all(_within(name, wanted) for name, wanted in self.versions.items())


@frozen(kw_only=True)
class Ledger:
    """The entries that apply to a run, by check id."""

    entries: Mapping[str, Known] = Factory(dict)

    def hangs(self, check: str) -> Known | None:
        """Return the entry because of which a check is not run."""
        entry = self.entries.get(check)
        return entry if entry is not None and entry.kind == "hang" else None

    def judge(self, result: Result) -> tuple[Result, str]:
        """Return the result in the light of the ledger, and the kind of the entry that was applied."""
        entry = self.entries.get(result.check)
        if entry is None or result.outcome not in (Outcome.PASS, Outcome.FAIL, Outcome.NOT_RUN):
            return result, ""
        about = f"{entry.kind}: {entry.reason} ({entry.issue}, until {entry.expires})"
        if result.outcome is Outcome.NOT_RUN:
            return attrs.evolve(result, message=about), entry.kind
        if result.outcome is Outcome.PASS:
            if entry.kind == "flaky":
                return attrs.evolve(result, notes=(*result.notes, about)), entry.kind
            told = f"passes, and the ledger says it fails. Remove the entry. {about}"
            return attrs.evolve(result, outcome=Outcome.UNEXPECTED_PASS, message=told), entry.kind
        if entry.match in result.message:
            told = f"{about}\n{result.message}"
            return attrs.evolve(result, outcome=Outcome.KNOWN_FAIL, message=told), entry.kind
        told = f"{result.message}\nNot the known failure: the ledger expects {entry.match!r} in the message."
        return attrs.evolve(result, message=told), entry.kind


def read_ledger(
    path: Path,
    *,
    today: date,
    ids: Collection[str],
    retired: Collection[str] = (),
    device: str,
    backend: str,
) -> Ledger:
    """Read a ledger and keep what applies; every entry is held to the rules, whether it applies or not.

    Args:
        path: the file.
        today: the day expiry is measured against.
        ids: of every check of the suite.
        retired: ids that once were.
        device: of the run.
        backend: name of the target, `train+infer` for a pair.

    Raises:
        ConfigError: no file, no toml, an unknown id, a field that is missing, unknown or wrong, expired, twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"the ledger {path} cannot be read", why=str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the ledger {path} is no toml", why=str(error)) from error
    listed = data.get("known", [])
    if set(data) - {"known"} or not isinstance(listed, list):
        raise ConfigError(
            f"the ledger {path} holds {', '.join(sorted(data))}", why="it may hold [[known]] entries only"
        )
    wrong: list[str] = []
    entries: list[Known] = []
    for number, item in enumerate(listed, 1):
        entry, faults = _entry(item, today, ids, retired)
        name = item.get("check", "?") if isinstance(item, Mapping) else "?"
        wrong += [f"entry {number} ({name}): {fault}" for fault in faults]
        if entry is not None:
            wrong += [f"entry {number} ({name}): is there twice" for other in entries if _same(other, entry)]
            entries.append(entry)
    applying = [entry for entry in entries if entry.applies(device=device, backend=backend)]
    for check in sorted({e.check for e in applying if sum(o.check == e.check for o in applying) > 1}):
        if not any(f"({check})" in fault for fault in wrong):
            wrong.append(f"{check}: two entries apply to this run")
    if wrong:
        raise ConfigError(
            f"the ledger {path} breaks its rules",
            why="\n       ".join(wrong),
            fix="fix the entries; the rules are in the README of areal-conformance",
        )
    return Ledger(entries={entry.check: entry for entry in applying})


def _entry(item: object, today: date, ids: Collection[str], retired: Collection[str]) -> tuple[Known | None, list[str]]:
    if not isinstance(item, Mapping):
        return None, ["is no table"]
    faults = _shape(item)
    if faults:
        return None, faults
    entry = Known(**item)
    if entry.check in retired:
        faults.append("the check is retired: remove the entry")
    elif entry.check not in ids:
        near = difflib.get_close_matches(entry.check, ids, n=1)
        told = f"did you mean {near[0]}?" if near else "areal conformance list"
        faults.append(f"no check has this id (exact, case and all): {told}")
    if entry.kind not in KINDS:
        faults.append(f"kind {entry.kind!r} is none of {', '.join(KINDS)}")
    if entry.expires < today:
        faults.append(f"expired on {entry.expires}: fix it, or renew with what is known now")
    return entry, faults


def _shape(item: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the fields of an entry. Any: a toml table."""
    kinds = {"expires": date, "versions": dict}
    fields = {one.name: one.default is attrs.NOTHING for one in attrs.fields(Known)}
    faults = [f"{name} is missing" for name, needed in fields.items() if needed and name not in item]
    for name, value in item.items():
        wanted = kinds.get(name, str)
        if name not in fields:
            faults.append(f"unknown field {name}")
        elif type(value) is not wanted:
            faults.append(f"{name} must be a {wanted.__name__}{HOW.get(wanted, '')}")
        elif fields[name] and value == "":
            faults.append(f"{name} is empty")
    versions = item.get("versions", {})
    for name, wanted in versions.items() if isinstance(versions, dict) else ():
        try:
            SpecifierSet(wanted)
        except (InvalidSpecifier, AttributeError, TypeError):
            faults.append(f"versions.{name}: {wanted!r} is no version range such as '>=2.8,<2.9'")
    return faults


def _same(one: Known, other: Known) -> bool:
    return (one.check, one.device, one.backend, one.versions) == (
        other.check,
        other.device,
        other.backend,
        other.versions,
    )


def _within(distribution: str, wanted: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(metadata.version(distribution), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def suggestion(failures: Sequence[tuple[str, str]], stale: Sequence[str], expires: date) -> str:
    """Return a patch for a ledger: an entry a failure (check id and message), and the stale ones to remove.

    `reason` and `issue` are left empty, which the rules refuse: a person fills them in.
    """
    lines = [f"# {line}" for line in ("A proposal. " + REMEDIES, "Fill in reason and issue before you commit it.")]
    lines += [f"# remove the entry of {check}: it passes" for check in stale]
    for check, message in failures:
        lines += [
            "",
            "[[known]]",
            f"check = {_quoted(check)}",
            'kind = "bug"  # ' + " | ".join(KINDS),
            f"match = {_quoted(_telling(message))}",
            'reason = ""',
            'issue = ""',
            f"expires = {expires.isoformat()}",
        ]
    return "\n".join(lines) + "\n"


def _telling(message: str) -> str:
    """Return the first line below the law, or what there is, in whole words, without the place in a source file."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("law ")] or lines or ["?"]
    first = _PLACE.sub("", said[0])
    return first if len(first) <= MAX_MATCH else first[:MAX_MATCH].rpartition(" ")[0] or first[:MAX_MATCH]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
