"""What the outcomes of many checks amount to: one word, one line, and the same for each part.

`failure` if any check fails, errs or passes against the ledger; else `incomplete` if a check of the
profile has no outcome, or nothing ran; else `partial` if a core check is neither passed nor skipped, or the ledger
declares one flaky or hanging; else `success`.

Knows: the rules, on rows.
Does not know: where rows come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from attrs import frozen

from areal_conformance.check import Tier
from areal_conformance.outcome import WORKS_UNCLAIMED, Outcome
from areal_conformance.run.record import Row, Standing


class Verdict(StrEnum):
    """The word on a whole run."""

    SUCCESS = "success"
    PARTIAL = "partial"
    FAILURE = "failure"
    INCOMPLETE = "incomplete"


EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.SUCCESS: 0,
    Verdict.FAILURE: 1,
    Verdict.PARTIAL: 3,
    Verdict.INCOMPLETE: 4,
}
"""Of `areal conformance run`; 2 is bad input."""

FAILING = (Outcome.FAIL, Outcome.ERROR, Outcome.UNEXPECTED_PASS)
RAN = (Outcome.PASS, Outcome.KNOWN_FAIL, *FAILING, Outcome.INCONCLUSIVE)
REFUSED = "refused, as it says"
UNCLAIMED = "works, and is not claimed"
"""Of an ability in place of `success`, where the manifest does not claim it."""
_CAPPED = ("flaky", "hang")


@frozen(kw_only=True)
class Judgement:
    """The verdict and its line one."""

    verdict: Verdict
    line: str


def judge(rows: Iterable[Row], left_out: Mapping[str, int] | None = None) -> Judgement:
    """Judge the rows of a profile; provisional ones are told apart and have no effect."""
    every = list(rows)
    counted = [row for row in every if not row.provisional]
    provisional = [row for row in every if row.provisional]
    return Judgement(verdict=_verdict(counted), line=_line(counted, provisional, left_out or {}))


def standings(role: str, rows: Iterable[Row], counting: Collection[str]) -> tuple[Standing, ...]:
    """Return the verdict of the role's core, and of every ability of which something is known.

    `counting` are the abilities a run may count on here. Of any other, success says no more than that it is refused:
    its verdict reads so.
    """
    counted = [row for row in rows if not row.provisional]
    parts = {f"{role}-core": [row for row in counted if row.tier is Tier.CORE]}
    for claim in sorted({claim for row in counted for claim in row.claims}):
        concerned = [row for row in counted if claim in row.claims]
        if any(row.outcome is not Outcome.SKIP for row in concerned):
            parts[f"{role}-extended: {claim}"] = concerned
    unclaimed = {f"{role}-extended: {claim}" for row in counted for claim in row.claims if claim not in counting}
    return tuple(
        Standing(name=name, verdict=_standing(part, claimed=name not in unclaimed), line=_line(part, [], {}))
        for name, part in parts.items()
        if part
    )


def _standing(rows: Sequence[Row], *, claimed: bool) -> str:
    verdict = _verdict(rows)
    if claimed or verdict is not Verdict.SUCCESS:
        return str(verdict)
    return UNCLAIMED if any(note.endswith(WORKS_UNCLAIMED) for row in rows for note in row.notes) else REFUSED


def _verdict(rows: Sequence[Row]) -> Verdict:
    if any(row.outcome in FAILING for row in rows):
        return Verdict.FAILURE
    if any(row.missing for row in rows) or not any(row.outcome in RAN for row in rows):
        return Verdict.INCOMPLETE
    if any(row.tier is Tier.CORE and row.outcome not in (Outcome.PASS, Outcome.SKIP) for row in rows):
        return Verdict.PARTIAL
    if any(row.known in _CAPPED for row in rows):
        return Verdict.PARTIAL
    return Verdict.SUCCESS


def _line(rows: Sequence[Row], provisional: Sequence[Row], left_out: Mapping[str, int]) -> str:
    outcomes = Counter(row.outcome for row in rows)
    ran = sum(outcomes[outcome] for outcome in RAN)
    each = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in RAN if outcomes[outcome])
    exempt = sum(row.outcome is Outcome.SKIP and row.tier is Tier.CORE for row in rows)
    parts = [f"{ran} ran" + (f": {each}" if each else ""), f"{outcomes[Outcome.SKIP] - exempt} skipped by claim"]
    if exempt:
        parts.append(f"{exempt} skipped as the adapter says")
    hanging = sum(row.outcome is Outcome.NOT_RUN and not row.missing for row in rows)
    if hanging:
        parts.append(f"{hanging} not run as the ledger says")
    parts.append(f"{sum(row.missing for row in rows)} missing")
    line = f"{in_words(len(rows))} in profile, " + "; ".join(parts) + "."
    if provisional:
        ends = Counter(row.outcome for row in provisional)
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ends.items()))
        line += f" Apart, without effect: {len(provisional)} provisional: {told}."
    if left_out:
        told = ", ".join(f"{count} need {what}" for what, count in left_out.items())
        line += f" Not in the profile: {told}."
    return line


def in_words(count: int) -> str:
    """Return a number of checks in words."""
    return "1 check" if count == 1 else f"{count} checks"
