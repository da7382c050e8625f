"""Inference engines whose pause, resume or abort is not what it says.

Knows: how control of the reference generator can be bent.
Does not know: weights.
"""

from __future__ import annotations

import asyncio

import attrs

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import EngineStatus, Generation, GenerationRequest, PauseMode, VersionSpan
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.plugins.claims import unsupported
from areal_proof.mutants import mutant
from areal_reference.infer.engine import ReferenceInferenceEngine


@mutant(
    "infer/reference",
    killers=("infer.pause.freezes", "infer.pause.holds_new"),
    row="sleep-is-real",
    incident="vLLM#45585",
)
class PauseIgnored(ReferenceInferenceEngine):
    """Says it is paused, and computes on."""

    async def pause(self, mode: PauseMode) -> None:
        self._require()
        vars(self)["says_paused"] = True
        if mode is PauseMode.ABORT:
            await super().pause(mode)
            await super().resume()

    async def resume(self) -> None:
        vars(self)["says_paused"] = False
        await super().resume()

    async def status(self) -> EngineStatus:
        return attrs.evolve(await super().status(), paused=vars(self).get("says_paused", False))


@mutant("infer/reference", killers=("infer.pause.freezes",), row="sleep-is-real")
class PauseReturnsEarly(ReferenceInferenceEngine):
    """Returns from `pause` while tokens are still being computed."""

    async def pause(self, mode: PauseMode) -> None:
        loop = self._require().loop
        goal = loop.counters.tokens + 10

        async def later() -> None:
            while loop.rows.count and loop.counters.tokens < goal:  # noqa: ASYNC110 - the loop is another thread
                await asyncio.sleep(0)
            loop.post(lambda: loop.pause(abort=mode is PauseMode.ABORT))

        vars(self)["later"] = asyncio.ensure_future(later())
        await asyncio.sleep(0)


@mutant("infer/reference", killers=("infer.pause.freezes", "infer.pause.keep_is_invisible"))
class PauseCostsAToken(ReferenceInferenceEngine):
    """Loses the last token of a request that lived through a pause."""

    async def pause(self, mode: PauseMode) -> None:
        await super().pause(mode)
        vars(self)["pauses"] = vars(self).get("pauses", 0) + 1

    async def generate(self, request: GenerationRequest) -> Generation:
        before = vars(self).get("pauses", 0)
        result = await super().generate(request)
        count = len(result.output_ids) - 1
        if before == vars(self).get("pauses", 0) or result.stop_reason is StopReason.ABORTED or count < 1:
            return result
        spans = [attrs.evolve(span, stop=min(span.stop, count)) for span in result.version_spans]
        return attrs.evolve(
            result,
            output_ids=result.output_ids[:count],
            logprobs=result.logprobs[:count],
            version_spans=tuple(span for span in spans if span.stop > span.start),
        )


@mutant("infer/reference", killers=("infer.pause.keep_is_invisible", "infer.pause.freezes"))
class KeepIsAbort(ReferenceInferenceEngine):
    """Returns requests early where it was to freeze them."""

    async def pause(self, mode: PauseMode) -> None:
        await super().pause(PauseMode.ABORT)


@mutant("infer/reference", killers=("infer.pause.abort_returns",))
class AbortForgetsTheQueue(ReferenceInferenceEngine):
    """Returns what runs, and leaves what is queued waiting."""

    async def pause(self, mode: PauseMode) -> None:
        loop = self._require().loop

        def message() -> None:
            waiting = list(loop.waiting)
            loop.waiting.clear()
            loop.pause(abort=mode is PauseMode.ABORT)
            loop.waiting.extend(waiting)

        await self._between_steps(message)


@mutant("infer/reference", killers=("infer.pause.abort_returns",), row="trained-as-submitted")
class AbortedIsLength(ReferenceInferenceEngine):
    """Says of an output that a pause cut short that it reached its length."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        cut = result.stop_reason is StopReason.ABORTED and result.output_ids
        return attrs.evolve(result, stop_reason=StopReason.LENGTH) if cut else result


@mutant("infer/reference", killers=("infer.pause.abort_returns",), row="trained-as-submitted")
class AbortedIsEmpty(ReferenceInferenceEngine):
    """Throws the tokens of an aborted request away."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        if result.stop_reason is not StopReason.ABORTED:
            return result
        return attrs.evolve(result, output_ids=(), logprobs=(), version_spans=())


@mutant(
    "infer/reference",
    killers=("infer.pause.abort_continues", "infer.pause.abort_returns", "infer.pause.ends_first_token"),
    row="token-fidelity",
)
class AbortedRepeatsAToken(ReferenceInferenceEngine):
    """Returns the last token but one of an aborted request once more, at its end."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        if result.stop_reason is not StopReason.ABORTED or len(result.output_ids) < 2:
            return result
        last = result.version_spans[-1]
        return attrs.evolve(
            result,
            output_ids=(*result.output_ids, result.output_ids[-2]),
            logprobs=(*result.logprobs, result.logprobs[-2]),
            version_spans=(*result.version_spans[:-1], attrs.evolve(last, stop=last.stop + 1)),
        )


@mutant("infer/reference", killers=("infer.pause.abort_returns",), row="version-spans")
class AbortedHasAnEmptySpan(ReferenceInferenceEngine):
    """Gives a request that was aborted before its first token a span of no token."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        if result.output_ids:
            return result
        return attrs.evolve(result, version_spans=(VersionSpan(start=0, stop=0, version=0),))


@mutant("infer/reference", killers=("infer.pause.holds_new",))
class RefusesWhilePaused(ReferenceInferenceEngine):
    """Fails requests that come during a pause."""

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._require().loop.paused:
            raise GenerationFailed("the engine is paused")
        return await super().generate(request)


@mutant("infer/reference", killers=("infer.pause.holds_new",))
class AnswersEmptyWhilePaused(ReferenceInferenceEngine):
    """Answers requests that come during a pause at once, with nothing."""

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._require().loop.paused:
            return Generation(output_ids=(), logprobs=(), version_spans=(), stop_reason=StopReason.ABORTED)
        return await super().generate(request)


@mutant("infer/reference", killers=("infer.pause.idempotent",))
class PauseIsASwitch(ReferenceInferenceEngine):
    """Resumes when it is told to pause a second time."""

    async def pause(self, mode: PauseMode) -> None:
        if self._require().loop.paused:
            await self.resume()
        else:
            await super().pause(mode)


@mutant("infer/reference", killers=("infer.pause.mixed",))
class SecondPauseIsIgnored(ReferenceInferenceEngine):
    """Ignores a pause, of whatever mode, while it is paused."""

    async def pause(self, mode: PauseMode) -> None:
        if not self._require().loop.paused:
            await super().pause(mode)


@mutant("infer/reference", killers=("infer.pause.cancelled",))
class CancelDeafWhilePaused(ReferenceInferenceEngine):
    """Misses a cancellation that comes during a pause, and computes on when resumed."""

    async def generate(self, request: GenerationRequest) -> Generation:
        inner = asyncio.ensure_future(super().generate(request))
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            if self._running is None or not self._running.loop.paused:
                inner.cancel()
            raise


@mutant(
    "infer/reference",
    killers=("infer.pause.refuse_keep",),
    claims={"pause.keep": unsupported("requests cannot be frozen")},
)
class KeepUnclaimedIsIgnored(ReferenceInferenceEngine):
    """Does nothing when it is asked to freeze requests, which it does not claim."""

    async def pause(self, mode: PauseMode) -> None:
        if mode is PauseMode.ABORT:
            await super().pause(mode)


@mutant(
    "infer/reference",
    killers=("infer.pause.refuse_abort",),
    claims={"pause.abort": unsupported("requests cannot be returned early")},
)
class AbortUnclaimedIsIgnored(ReferenceInferenceEngine):
    """Freezes requests when it is asked to return them, which it does not claim."""

    async def pause(self, mode: PauseMode) -> None:
        await super().pause(PauseMode.KEEP)


@mutant(
    "infer/reference",
    killers=("infer.weights.cast_refused",),
    claims={"weights.cast": unsupported("weights must come in the dtype that serves")},
)
class CastUnclaimedIsSkipped(ReferenceInferenceEngine):
    """Skips tensors of another dtype, which it does not claim to cast, and says it received them."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        running = self._require()
        receipt = await super().receive_weights(source, version)
        kinds = {spec.dtype for spec in source.manifest.tensors}
        if kinds != {running.spec.dtype}:
            for name, parameter in running.loaded.model.named_parameters():
                running.stage._spare[name].copy_(parameter.data)
        return receipt
