"""A scheduler's own refusal of what its manifest does not claim. Public, for schedulers.

Knows: the words a job asks for.
Does not know: who asks; a run is refused by its plan before, other callers are not.
"""

from __future__ import annotations

from areal_core.contract.abilities import asked_of_job
from areal_core.contract.errors import CapabilityError
from areal_core.contract.scheduler import Job
from areal_core.plugins.manifest import Manifest


def refuse_unclaimed(job: Job, manifest: Manifest) -> None:
    """Refuse a job that asks for an ability the scheduler does not claim; called first in `submit`.

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
