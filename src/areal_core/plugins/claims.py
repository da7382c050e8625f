"""What a backend says it can do, ability by ability, and why not where it cannot.

The conditions of `when(...)` are `device == cuda`, `device != cpu`, `device in (cuda, npu)`, joined by `and`.

Knows: four answers, and a grammar of three comparisons over names and words.
Does not know: what the names mean; the caller supplies the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import frozen

from areal_core.contract.abilities import asked_of_job
from areal_core.contract.errors import CapabilityError, ManifestError
from areal_core.contract.scheduler import Job

if TYPE_CHECKING:
    from areal_core.plugins.manifest import Manifest

_COMPARISON = re.compile(r"\s*(?P<name>[a-z_][\w.]*)\s*(?P<op>==|!=|in\b)\s*(?P<rest>.+?)\s*\Z")
_WORDS = re.compile(r"\(\s*[\w.\-]+(?:\s*,\s*[\w.\-]+)*\s*,?\s*\)\Z")
_WORD = re.compile(r"[\w.\-]+\Z")


class Support(StrEnum):
    """Four answers; two kinds of no are different things."""

    FULL = "full"
    WHEN = "when"
    """Only under a condition, checked by the plan or the probe."""
    NOT_YET = "not_yet"
    """The engine could; the plugin does not, so far."""
    UNSUPPORTED = "unsupported"
    """The engine cannot."""


@frozen
class Claim:
    """One answer. `condition` reads `device == cuda` or the like; `why` is shown when a run is refused."""

    support: Support
    why: str = ""
    condition: str = ""
    issue: str = ""

    @property
    def claimed(self) -> bool:
        """Return whether a run may count on the ability (perhaps under its condition)."""
        return self.support in (Support.FULL, Support.WHEN)


def full() -> Claim:
    """Claim the ability without reserve."""
    return Claim(Support.FULL)


def when(condition: str, why: str) -> Claim:
    """Claim the ability where the condition holds, for example `when("device == cuda", "needs NCCL")`."""
    return Claim(Support.WHEN, why=why, condition=condition)


def not_yet(why: str, issue: str = "") -> Claim:
    """Say that the plugin lacks the ability although the engine has it."""
    return Claim(Support.NOT_YET, why=why, issue=issue)


def unsupported(why: str) -> Claim:
    """Say that the engine cannot do it."""
    return Claim(Support.UNSUPPORTED, why=why)


def refuse_unclaimed(job: Job, manifest: Manifest) -> None:
    """Refuse a job that asks for an ability the scheduler does not claim; schedulers call it first in `submit`.

    Raises:
        CapabilityError: names the word, and the manifest's reason.
    """
    for word in asked_of_job(job):
        claim = manifest.claims.get(word)
        if claim is None or not claim.claimed:
            raise CapabilityError(
                f"scheduler {manifest.name!r} cannot do {word!r} for role {job.role!r}",
                why=(claim.why if claim else "") or "its manifest does not mention it",
                fix="leave it out of the job, or choose another scheduler: areal backends --role scheduler",
            )


def holds(condition: str, facts: Mapping[str, str]) -> bool:
    """Tell whether every comparison is true of the facts; a name without a fact counts as true.

    Raises:
        ManifestError: the condition is not of this grammar.
    """
    return all(test(facts) for test in parse(condition))


def parse(condition: str) -> list[Callable[[Mapping[str, str]], bool]]:
    """Return one test per comparison of a condition, left to right.

    Raises:
        ManifestError: the condition is not of this grammar.
    """
    return [_comparison(part, condition) for part in re.split(r"\band\b", condition)]


def _comparison(part: str, condition: str) -> Callable[[Mapping[str, str]], bool]:
    match = _COMPARISON.match(part)
    if match is None:
        raise _malformed(condition)
    name, op, rest = match["name"], match["op"], match["rest"]
    if not (_WORDS if op == "in" else _WORD).match(rest):
        raise _malformed(condition)
    words = {word.strip() for word in rest.strip("()").split(",") if word.strip()}
    return lambda facts: name not in facts or (facts[name] in words) is (op != "!=")


def _malformed(condition: str) -> ManifestError:
    return ManifestError(
        f"condition {condition!r} cannot be read",
        why="a condition compares a name with words",
        fix="write 'device == cuda', 'device != cpu' or 'device in (cuda, npu)', joined by 'and'",
    )
