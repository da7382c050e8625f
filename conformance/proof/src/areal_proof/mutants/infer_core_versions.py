"""Inference engines whose version stamps lie, or whose updates come at the wrong moment.

Knows: how stamps and commits of the reference generator can be bent.
Does not know: the bytes that are sent.
"""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from areal_core.contract.inference import Generation, VersionSpan
from areal_core.plugins.claims import unsupported
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import Original, after, breaking, gives, row, then
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.infer.loop import GenerationLoop

breaks = breaking("infer/reference", ReferenceInferenceEngine)


def stamped(result: Generation, version: int) -> Generation:
    """Return an output stamped with one version throughout."""
    count = len(result.output_ids)
    spans = (VersionSpan(start=0, stop=count, version=version),) if count else ()
    return attrs.evolve(result, version_spans=spans)


@breaks("generate", "infer.versions.in_flight", "infer.versions.many_in_one", "infer.versions.queued",
        incident="vLLM#54443", row="version-spans")  # fmt: skip
async def StampAtAdmission(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Stamps every token with the version that served when the request came."""
    version = self.running.stage.version
    return stamped(await original(), version)


@breaks("generate", "infer.versions.queued", row="version-spans")
async def WaitingIsStampedOnArrival(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Stamps a request that had to wait for its slot with the version of its arrival."""
    running = self.running
    version, waits = running.stage.version, running.loop.rows.count >= running.spec.max_concurrent
    result = await original()
    return stamped(result, version) if waits else result


@breaks("generate", "infer.versions.in_flight", "infer.versions.many_in_one", "infer.versions.while_paused",
        row="version-spans")  # fmt: skip
async def StampLagsOneToken(original: Original) -> Any:
    """Stamps the first token after an update with the version before it."""
    result = await original()
    spans, count = result.version_spans, len(result.output_ids)
    late = [
        attrs.evolve(
            span, start=span.start and min(span.start + 1, count), stop=min(span.stop + (span.stop < count), count)
        )
        for span in spans
    ]
    return attrs.evolve(result, version_spans=tuple(span for span in late if span.stop > span.start))


@breaks("generate", "infer.versions.many_in_one", row="version-spans")
async def OnlyTwoSpans(original: Original) -> Any:
    """Takes everything after the first update for one version."""
    result = await original()
    spans = result.version_spans
    if len(spans) < 3:
        return result
    return attrs.evolve(result, version_spans=(spans[0], attrs.evolve(spans[-1], start=spans[0].stop)))


@breaks("commit_weights", "infer.versions.while_paused", "infer.versions.traces", "infer.versions.machine",
        incident="vLLM#45585", row="sleep-is-real")  # fmt: skip
async def UpdateLostWhilePaused(original: Original, self: ReferenceInferenceEngine, version: int) -> None:
    """Takes the number of a version that is committed during a pause, and not its weights."""
    running = self.running
    if running.loop.paused and running.stage.staged == version:
        running.stage.version, running.stage.staged = version, None
        return
    await original()


@breaks("commit_weights", "infer.faults.crossing_calls", incident="NeMo-RL#2512", row="control-messages")
async def CommitLosesAgainstPause(self: ReferenceInferenceEngine, version: int) -> None:
    """Forgets the weights of a commit that finds a pause in force when its turn comes."""
    running = self.running

    def commit() -> None:
        if running.loop.paused and running.stage.staged == version:
            running.stage.version, running.stage.staged = version, None
        else:
            running.loop.commit(version)

    await self.between_steps(commit)


@breaks("receive_weights", "infer.versions.same_bytes", row="version-spans",
        commit_weights=lambda original, self: None if vars(self).get("equal") else original())  # fmt: skip
async def EqualBytesAreNoUpdate(original: Original, self: Any) -> Any:
    """Skips the commit of weights whose fingerprints are those of the version before."""
    receipt = await original()
    mine = vars(self)
    mine["equal"] = mine.get("last") == receipt.fingerprints
    mine["last"] = receipt.fingerprints
    return receipt


@mutant(
    "infer/reference",
    killers=("infer.versions.from_next_token", "infer.versions.new_requests"),
    row="served-policy-changes",
)
class CommitsLater(ReferenceInferenceEngine):
    """Returns from `commit_weights` before the old weights computed their last tokens."""

    async def commit_weights(self, version: int) -> None:
        loop = self.running.loop
        goal = loop.counters.tokens + 24

        async def later() -> None:
            commit = super(CommitsLater, self).commit_weights
            while loop.rows.count and loop.counters.tokens < goal and not loop.paused:  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0)
            await commit(version)

        if not loop.rows.count:
            await super().commit_weights(version)
            return
        vars(self).setdefault("tasks", []).append(asyncio.ensure_future(later()))


class _SharingLoop(GenerationLoop):
    __slots__ = ()

    def commit(self, version: int) -> None:
        owners = dict(self.owners)
        super().commit(version)
        self.owners.update(owners)


@breaks("commit_weights", "infer.cache.waiting_requests")
async def WaitingPromptsLoseATokenAtUpdates(original: Original, self: ReferenceInferenceEngine) -> None:
    """Takes the first prompt token of waiting requests for computed when an update comes."""
    for ticket in self.running.loop.waiting:
        ticket.request = attrs.evolve(ticket.request, input_ids=ticket.request.input_ids[1:])
    await original()


@breaks("commit_weights", "infer.cache.kept")
async def RecomputesThoughItKeeps(original: Original, self: ReferenceInferenceEngine) -> None:
    """Makes the cache anew at an update, though it claims to keep it."""
    await original()
    loop = self.running.loop

    def recompute() -> None:
        loop.recompute = loop.rows.count > 0

    await self.between_steps(recompute)


@breaks("commit_weights", "infer.cache.recomputed")
async def FrozenKeepTheirCache(original: Original, self: ReferenceInferenceEngine) -> None:
    """Makes the cache of running requests anew at an update, and not of those that a pause froze."""
    await original()
    loop = self.running.loop
    if loop.paused:
        await self.between_steps(lambda: setattr(loop, "recompute", False))


ROWS = breaks.rows(
    row("StampAtReturn", "Stamps every token with the version that serves when the request is done.",
        "infer.versions.in_flight", "infer.versions.many_in_one", incident="vLLM#48306", row="version-spans",
        generate=after(lambda result, self: stamped(result, self.running.stage.version))),
    row("StampsOneAhead", "Stamps tokens with the number of the next version.", "infer.versions.at_rest",
        "infer.versions.first_token", row="version-spans",
        generate=gives(version_spans=lambda result: tuple(attrs.evolve(span, version=span.version + 1)
            for span in result.version_spans))),
    row("ReturnedEarlyIsUnstamped", "Stamps what a pause returned early as version 0.", "infer.versions.aborted",
        row="version-spans",
        generate=after(lambda result: stamped(result, 0) if result.stop_reason == "aborted" else result)),
    row("SmallVersions", "Has sixteen bits for a version.", "infer.many.far_apart", row="version-spans",
        generate=gives(version_spans=lambda result: tuple(attrs.evolve(span, version=span.version & 0xFFFF)
            for span in result.version_spans))),
    row("SharesOldPrefixes", "Lets new requests share prompts that older weights have cached.",
        "infer.cache.new_requests", incident="vime#64", row="logprob-gap",
        start=then(lambda self: setattr(self.running.loop, "__class__", _SharingLoop))),
    row("KeepsThoughItRecomputes", "Goes on with the old cache at an update, though it claims to make it anew.",
        "infer.cache.recomputed", claims={"weights.kv_kept": unsupported("the cache is recomputed")}),
    row("FirstTokenHasNoSpan", "Leaves the token that came with the prompt out of its spans.",
        "infer.versions.first_token", row="version-spans",
        generate=after(lambda result: attrs.evolve(result, version_spans=()) if len(result.output_ids) == 1
            else result)),
    row("CountsSpansFromThePrior", "Numbers the spans of a continued request from its prior tokens on.",
        "infer.versions.aborted", row="version-spans",
        generate=gives(version_spans=lambda result, request: tuple(attrs.evolve(span,
            start=span.start + request.num_prior, stop=span.stop + request.num_prior)
            for span in result.version_spans))),
)  # fmt: skip


@breaks("resume", "infer.faults.pause_storm", "infer.pause.idempotent", depth=0,
    pause=then(lambda self: setattr(self, "depth", self.depth + 1)))  # fmt: skip
async def PausesAreCounted(original: Original, self: Any) -> None:
    """Needs as many resumes as there were pauses."""
    self.depth = max(0, self.depth - 1)
    if not self.depth:
        await original()
