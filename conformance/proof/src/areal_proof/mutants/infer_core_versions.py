"""Inference engines whose version stamps lie, or whose updates come at the wrong moment.

Knows: how stamps and commits of the reference generator can be bent.
Does not know: the bytes that are sent.
"""

from __future__ import annotations

import asyncio

import attrs

from areal_core.contract.inference import Generation, GenerationRequest, InferenceSpec, VersionSpan
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.plugins.claims import unsupported
from areal_proof.mutants import mutant
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.infer.loop import GenerationLoop


def stamped(result: Generation, version: int) -> Generation:
    """Return an output stamped with one version throughout."""
    count = len(result.output_ids)
    spans = (VersionSpan(start=0, stop=count, version=version),) if count else ()
    return attrs.evolve(result, version_spans=spans)


@mutant(
    "infer/reference",
    killers=("infer.versions.in_flight", "infer.versions.many_in_one", "infer.versions.queued"),
    incident="vLLM#54443",
    row="version-spans",
)
class StampAtAdmission(ReferenceInferenceEngine):
    """Stamps every token with the version that served when the request came."""

    async def generate(self, request: GenerationRequest) -> Generation:
        version = self._require().stage.version
        return stamped(await super().generate(request), version)


@mutant(
    "infer/reference",
    killers=("infer.versions.in_flight", "infer.versions.many_in_one"),
    incident="vLLM#48306",
    row="version-spans",
)
class StampAtReturn(ReferenceInferenceEngine):
    """Stamps every token with the version that serves when the request is done."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        return stamped(result, self._require().stage.version)


@mutant("infer/reference", killers=("infer.versions.queued",), row="version-spans")
class WaitingIsStampedOnArrival(ReferenceInferenceEngine):
    """Stamps a request that had to wait for its slot with the version of its arrival."""

    async def generate(self, request: GenerationRequest) -> Generation:
        running = self._require()
        version, waits = running.stage.version, running.loop.rows.count >= running.spec.max_concurrent
        result = await super().generate(request)
        return stamped(result, version) if waits else result


@mutant(
    "infer/reference",
    killers=("infer.versions.in_flight", "infer.versions.many_in_one", "infer.versions.while_paused"),
    row="version-spans",
)
class StampLagsOneToken(ReferenceInferenceEngine):
    """Stamps the first token after an update with the version before it."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        spans, count = result.version_spans, len(result.output_ids)
        late = [
            attrs.evolve(
                span, start=span.start and min(span.start + 1, count), stop=min(span.stop + (span.stop < count), count)
            )
            for span in spans
        ]
        return attrs.evolve(result, version_spans=tuple(span for span in late if span.stop > span.start))


@mutant("infer/reference", killers=("infer.versions.many_in_one",), row="version-spans")
class OnlyTwoSpans(ReferenceInferenceEngine):
    """Takes everything after the first update for one version."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        spans = result.version_spans
        if len(spans) < 3:
            return result
        return attrs.evolve(result, version_spans=(spans[0], attrs.evolve(spans[-1], start=spans[0].stop)))


@mutant("infer/reference", killers=("infer.versions.at_rest", "infer.versions.first_token"), row="version-spans")
class StampsOneAhead(ReferenceInferenceEngine):
    """Stamps tokens with the number of the next version."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        return attrs.evolve(
            result, version_spans=tuple(attrs.evolve(span, version=span.version + 1) for span in result.version_spans)
        )


@mutant("infer/reference", killers=("infer.versions.first_token",), row="version-spans")
class FirstTokenHasNoSpan(ReferenceInferenceEngine):
    """Leaves the token that came with the prompt out of its spans."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        if len(result.output_ids) != 1:
            return result
        return attrs.evolve(result, version_spans=())


@mutant(
    "infer/reference",
    killers=("infer.versions.while_paused", "infer.versions.traces", "infer.versions.machine"),
    row="sleep-is-real",
    incident="vLLM#45585",
)
class UpdateLostWhilePaused(ReferenceInferenceEngine):
    """Takes the number of a version that is committed during a pause, and not its weights."""

    async def commit_weights(self, version: int) -> None:
        running = self._require()
        if running.loop.paused and running.stage.staged == version:
            running.stage.version, running.stage.staged = version, None
            return
        await super().commit_weights(version)


@mutant("infer/reference", killers=("infer.faults.crossing_calls",), row="control-messages", incident="NeMo-RL#2512")
class CommitLosesAgainstPause(ReferenceInferenceEngine):
    """Forgets the weights of a commit that finds a pause in force when its turn comes."""

    async def commit_weights(self, version: int) -> None:
        running = self._require()

        def commit() -> None:
            if running.loop.paused and running.stage.staged == version:
                running.stage.version, running.stage.staged = version, None
            else:
                running.loop.commit(version)

        await self._between_steps(commit)


@mutant("infer/reference", killers=("infer.versions.same_bytes",), row="version-spans")
class EqualBytesAreNoUpdate(ReferenceInferenceEngine):
    """Skips the commit of weights whose fingerprints are those of the version before."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        mine = vars(self)
        mine["equal"] = mine.get("last") == receipt.fingerprints
        mine["last"] = receipt.fingerprints
        return receipt

    async def commit_weights(self, version: int) -> None:
        if not vars(self).get("equal"):
            await super().commit_weights(version)


@mutant(
    "infer/reference",
    killers=("infer.versions.from_next_token", "infer.versions.new_requests"),
    row="served-policy-changes",
)
class CommitsLater(ReferenceInferenceEngine):
    """Returns from `commit_weights` before the old weights computed their last tokens."""

    async def commit_weights(self, version: int) -> None:
        loop = self._require().loop
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


@mutant("infer/reference", killers=("infer.versions.aborted",), row="version-spans")
class ReturnedEarlyIsUnstamped(ReferenceInferenceEngine):
    """Stamps what a pause returned early as version 0."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        return stamped(result, 0) if result.stop_reason == "aborted" else result


@mutant("infer/reference", killers=("infer.versions.aborted",), row="version-spans")
class CountsSpansFromThePrior(ReferenceInferenceEngine):
    """Numbers the spans of a continued request from its prior tokens on."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result, by = await super().generate(request), request.num_prior
        spans = tuple(attrs.evolve(span, start=span.start + by, stop=span.stop + by) for span in result.version_spans)
        return attrs.evolve(result, version_spans=spans)


@mutant("infer/reference", killers=("infer.many.far_apart",), row="version-spans")
class SmallVersions(ReferenceInferenceEngine):
    """Has sixteen bits for a version."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        return attrs.evolve(
            result,
            version_spans=tuple(attrs.evolve(span, version=span.version & 0xFFFF) for span in result.version_spans),
        )


class _SharingLoop(GenerationLoop):
    __slots__ = ()

    def commit(self, version: int) -> None:
        owners = dict(self._owners)
        super().commit(version)
        self._owners.update(owners)


@mutant("infer/reference", killers=("infer.cache.new_requests",), row="logprob-gap", incident="vime#64")
class SharesOldPrefixes(ReferenceInferenceEngine):
    """Lets new requests share prompts that older weights have cached."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self._require().loop.__class__ = _SharingLoop
        return info


@mutant("infer/reference", killers=("infer.cache.waiting_requests",))
class WaitingPromptsLoseATokenAtUpdates(ReferenceInferenceEngine):
    """Takes the first prompt token of waiting requests for computed when an update comes."""

    async def commit_weights(self, version: int) -> None:
        for ticket in self._require().loop.waiting:
            ticket.request = attrs.evolve(ticket.request, input_ids=ticket.request.input_ids[1:])
        await super().commit_weights(version)


@mutant("infer/reference", killers=("infer.cache.kept",))
class RecomputesThoughItKeeps(ReferenceInferenceEngine):
    """Makes the cache anew at an update, though it claims to keep it."""

    async def commit_weights(self, version: int) -> None:
        await super().commit_weights(version)
        loop = self._require().loop

        def recompute() -> None:
            loop._recompute = loop.rows.count > 0

        await self._between_steps(recompute)


@mutant(
    "infer/reference",
    killers=("infer.cache.recomputed",),
    claims={"weights.kv_kept": unsupported("the cache is made anew")},
)
class KeepsThoughItRecomputes(ReferenceInferenceEngine):
    """Goes on with the old cache at an update, though it claims to make it anew."""


@mutant("infer/reference", killers=("infer.faults.pause_storm", "infer.pause.idempotent"))
class PausesAreCounted(ReferenceInferenceEngine):
    """Needs as many resumes as there were pauses."""

    async def pause(self, mode) -> None:  # type: ignore[no-untyped-def]
        await super().pause(mode)
        vars(self)["depth"] = vars(self).get("depth", 0) + 1

    async def resume(self) -> None:
        vars(self)["depth"] = max(0, vars(self).get("depth", 0) - 1)
        if not vars(self)["depth"]:
            await super().resume()
