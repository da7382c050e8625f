"""What a backend says it can do, ability by ability, and why not where it cannot."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from attrs import frozen

from areal_core.contract.abilities import asked_of_job
from areal_core.contract.errors import CapabilityError
from areal_core.contract.scheduler import Job

if TYPE_CHECKING:
    from areal_core.plugins.manifest import Manifest


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
