"""Engines whose draws depend on what a request is called, on who was about before, or on nothing that tells two apart.

Knows: one defect each.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from areal_core.contract.inference import GenerationRequest, PauseMode
from areal_proof.mutants.infer_sampling import asked
from areal_proof.mutants.rows import Original, breaking, given, row, then
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/reference", ReferenceInferenceEngine)
_SHORT = 32


def shifted(request: GenerationRequest, by: int) -> GenerationRequest:
    """Return a request whose seed, if it has one, is another."""
    return asked(request, seed=request.sampling.seed + by) if by and request.sampling.seed is not None else request


@breaks("generate", "infer.same.beside_twins", twins=0)
async def ATwinTakesTheSeedAway(original: Original, self: Any, request: GenerationRequest) -> Any:
    """Keeps seeds by id, so that a request whose twin was cancelled goes on without one."""
    names = self.__dict__.setdefault("names", {})
    try:
        return await original(shifted(request, names.get(request.request_id, 0)))
    except asyncio.CancelledError:
        names[request.request_id] = 1
        raise


@breaks("generate", "infer.same.after_silence", since=0.0)
async def SleepsInASecondOfSilence(original: Original, self: Any, request: GenerationRequest) -> Any:
    """Draws the first requests after a second without any with random numbers of its own."""
    awakened = bool(self.since) and time.monotonic() - self.since > 1.0
    answer = await original(shifted(request, int(awakened)))
    self.since = time.monotonic()
    return answer


@breaks("generate", "infer.apart.replicas", count=0)
async def ReplicasCountAlike(original: Original, self: Any, request: GenerationRequest) -> Any:
    """Draws the n-th request without a seed from the n-th stream, whichever replica it is."""
    self.count += 1
    return await original(asked(request, seed=self.count) if request.sampling.seed is None else request)


ROWS = breaks.rows(
    row("LongNamesAreSeeds", "Mixes what a long id has beyond its room for names into the seed.",
        "infer.same.renamed", generate=lambda original, request: original(shifted(request,
            sum(map(ord, request.request_id[_SHORT:]))))),
    row("NamesHaveAnEnd", "Draws a request without a seed from a stream of the first letters of its id.",
        "infer.apart.members", generate=given(request_id=lambda request: request.request_id[:_SHORT])),
    row("TurnsShareAStream", "Draws the turns of an episode, and its next tries, from one stream.",
        "infer.apart.members", generate=given(request_id=lambda request: request.request_id.partition("#")[0])),
    row("NamesAreSums", "Draws a request without a seed from the sum of the letters of its id.", "infer.apart.members",
        generate=lambda original, request: original(asked(request, seed=sum(map(ord, request.request_id)))
            if request.sampling.seed is None else request)),
    row("VersionsAreSeeds", "Draws seeded requests apart under each version, also of the same bytes.",
        "infer.same.after_updates",
        generate=lambda original, self, request: original(shifted(request, self.running.stage.version))),
    row("AbortsShiftTheNext", "Draws what comes after a pause that cut requests short with another stream.",
        "infer.same.after_abort", aborts=0, pause=then(lambda self, mode: setattr(self, "aborts",
            self.aborts + (mode is PauseMode.ABORT))),
        generate=lambda original, self, request: original(shifted(request, self.aborts))),
    row("ReplicasDrawApartToo", "Draws seeded requests apart on each replica, as if they had no seed.",
        "infer.same.over_replicas", start=then(lambda self, spec: setattr(self, "number", spec.replica)), number=0,
        generate=lambda original, self, request: original(shifted(request, self.number))),
    row("ARefusalShiftsTheNext", "Draws what comes after a refused request with the next stream.",
        "infer.same.after_refusals", refusals=0,
        generate=lambda original, self, request: _counted(original, self, request)),
)  # fmt: skip


async def _counted(original: Original, self: Any, request: GenerationRequest) -> Any:
    """Generate with a seed that moves with each refusal."""
    try:
        return await original(shifted(request, self.refusals))
    except ValueError:
        self.refusals += 1
        raise
