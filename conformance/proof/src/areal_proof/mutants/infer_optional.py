"""Engines whose optional abilities are broken: scoring, sleep, casting, determinism, prefix cache.

Knows: the second inference engine.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import EngineStatus, Generation, GenerationRequest, PauseMode
from areal_core.contract.weights import Receipt, WeightManifest, WeightSource
from areal_proof.mutants import mutant
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Seat
from areal_proof.second.infer.stage import Stage


@mutant("infer/second", killers=("infer.scoring.oracle", "infer.scoring.generated"))
class ScoresAtTemperatureOne(SecondInferenceEngine):
    """Scores at temperature 1 whatever is asked."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        return await super().score(input_ids, 1.0)


@mutant("infer/second", killers=("infer.scoring.oracle",), incident="AReaL#1290", row="logprob-gap")
class ScoresOneTokenAhead(SecondInferenceEngine):
    """Gives each token the score of the next one."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        scores = await super().score(input_ids, temperature)
        return [*scores[1:], 0.0]


@mutant("infer/second", killers=("infer.scoring.oracle",))
class KeepsScoresByTokens(SecondInferenceEngine):
    """Keeps the scores of a sequence and gives them again at another temperature."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        kept = self.__dict__.setdefault("kept_scores", {})
        key = (self._version, tuple(input_ids))
        if key not in kept:
            kept[key] = await super().score(input_ids, temperature)
        found: Sequence[float] = kept[key]
        return found


@mutant("infer/second", killers=("infer.scoring.follows_updates",), incident="verl#3821", row="served-policy-changes")
class ScoresWithTheFirstWeights(SecondInferenceEngine):
    """Scores with the weights of the folder, whatever was committed since."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        serving, self._weights = self._weights, self._require().weights
        try:
            return await super().score(input_ids, temperature)
        finally:
            self._weights = serving


@mutant("infer/second", killers=("infer.scoring.follows_updates",))
class ScoresWithStagedWeights(SecondInferenceEngine):
    """Scores with weights that were received and not committed."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        serving, self._weights = self._weights, self._staged.tensors if self._staged else self._weights
        try:
            return await super().score(input_ids, temperature)
        finally:
            self._weights = serving


@mutant("infer/second", killers=("infer.scoring.beside_generation",))
class ScoringWritesIntoRequests(SecondInferenceEngine):
    """Scores in a buffer that running requests use: a token of theirs is overwritten."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        for seat in self._running:
            if seat.output:
                seat.output[-1] = attrs.evolve(seat.output[-1], id=(seat.output[-1].id + 1) % 64)
        return await super().score(input_ids, temperature)


@mutant("infer/second", killers=("infer.sleep.computes_nothing",), incident="vLLM#45585", row="sleep-is-real")
class SleepIsAFlag(SecondInferenceEngine):
    """Says that it sleeps, and goes on serving the old weights when resumed."""

    async def sleep(self) -> None:
        self._require()
        if not self._paused:
            raise GenerationFailed("the engine cannot sleep", why="it is not paused")

    async def wake(self) -> None:
        self._require()


@mutant("infer/second", killers=("infer.sleep.computes_nothing",), row="sleep-is-real")
class WakesWithGarbage(SecondInferenceEngine):
    """Takes fresh memory on wake and serves what happens to be in it."""

    async def wake(self) -> None:
        loaded = self._require()
        if self._weights is None:
            self._weights = {name: torch.full(shape, 0.01) for name, shape in loaded.needs.shapes.items()}
        await super().wake()


@mutant("infer/second", killers=("infer.sleep.only_paused",), row="sleep-is-real")
class SleepsWhileServing(SecondInferenceEngine):
    """Sleeps although it is not paused, and drops what runs."""

    async def sleep(self) -> None:
        self._paused = True
        self._turn.clear()
        await super().sleep()


@mutant("infer/second", killers=("infer.sleep.round_trip",))
class SleepsOnlyOnce(SecondInferenceEngine):
    """Cannot be told to sleep twice."""

    async def sleep(self) -> None:
        if self._asleep:
            raise GenerationFailed("the engine sleeps already")
        await super().sleep()


@mutant("infer/second", killers=("infer.sleep.round_trip",))
class SleepLooksAwake(SecondInferenceEngine):
    """Reports a sleeping engine as one that is not paused: routing sends requests to it."""

    async def status(self) -> EngineStatus:
        return attrs.evolve(await super().status(), paused=self._paused and not self._asleep)


@mutant("infer/second", killers=("infer.sleep.frozen_requests",), row="sleep-is-real")
class SleepTearsTheFrozen(SecondInferenceEngine):
    """Loses a token of every frozen request when its memory goes."""

    async def sleep(self) -> None:
        for seat in self._running:
            del seat.output[1:2]
        await super().sleep()


@mutant("infer/second", killers=("infer.cast.bfloat16_sent", "infer.cast.bfloat16_served"))
class ProvesTheCastBytes(SecondInferenceEngine):
    """Fingerprints tensors after the cast: the proof never agrees with the sender's."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        from areal_core.weights.fingerprint import fingerprint

        receipt = await super().receive_weights(source, version)
        assert self._staged is not None
        return attrs.evolve(
            receipt, fingerprints={name: fingerprint(tensor) for name, tensor in self._staged.tensors.items()}
        )


class _SkipsOtherDtypes(Stage):
    """Leaves out tensors of another dtype; base of the mutant below."""

    old: Mapping[str, Tensor]

    def take(self, bucket: Mapping[str, Tensor]) -> None:
        super().take(bucket)
        for name, tensor in bucket.items():
            if tensor.dtype != self.needs.dtype:
                self.tensors[name] = self.old[name]


@mutant(
    "infer/second",
    killers=("infer.cast.bfloat16_sent", "infer.cast.bfloat16_served"),
    incident="ms-swift#9855",
    row="served-policy-changes",
)
class KeepsWhatItCannotCopy(SecondInferenceEngine):
    """Proves tensors of another dtype and goes on with the old ones."""

    def _new_stage(self, manifest: WeightManifest, version: int) -> Stage:
        stage = _SkipsOtherDtypes(needs=super()._new_stage(manifest, version).needs, manifest=manifest)
        stage.old = self._require_weights()
        return stage


@mutant("infer/second", killers=("infer.deterministic.company",), incident="verl#6780", row="synchronous-at-zero")
class CompanyChangesBits(SecondInferenceEngine):
    """Sums in another order when requests run together: the last bits differ."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(logprobs[token]) * (1.0 + 1e-7 * (len(self._running) > 1))


@mutant("infer/second", killers=("infer.deterministic.continued",))
class ContinuingChangesBits(SecondInferenceEngine):
    """Computes prior tokens as a prompt: the last bits differ from those of an uninterrupted request."""

    def _reported(self, seat: Seat, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(logprobs[token]) * (1.0 + 1e-7 * (seat.request.num_prior > 0))


@mutant("infer/second", killers=("infer.deterministic.paused",))
class PauseDrawsAnew(SecondInferenceEngine):
    """Goes on with other random numbers after a pause."""

    async def pause(self, mode: PauseMode) -> None:
        await super().pause(mode)
        for seat in self._running:
            seat.seed = f"{seat.seed}/paused"


@mutant("infer/second", killers=("infer.prefix_cache.cross_talk",))
class PrefixWithoutItsEnd(SecondInferenceEngine):
    """Finds a kept prompt by all but the last of its tokens."""

    def _prefix_key(self, seat: Seat) -> tuple[object, ...]:
        ids = seat.request.input_ids
        return (self._version, len(ids), *ids[:-1])


@mutant("infer/second", killers=("infer.prefix_cache.follows_updates",))
class PrefixOutlivesUpdates(SecondInferenceEngine):
    """Keeps prompts over updates."""

    async def commit_weights(self, version: int) -> None:
        kept = dict(self._prefixes)
        await super().commit_weights(version)
        self._prefixes.update(kept)

    def _prefix_key(self, seat: Seat) -> tuple[object, ...]:
        return (id(seat.adapter), *seat.request.input_ids)


@mutant("infer/second", killers=("infer.prefix_cache.update_in_flight",))
class PrefixOfTwoVersions(SecondInferenceEngine):
    """Keeps what a request began with under the old weights when it ends under the new ones."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        found = super()._next_logits(seat)
        first = self.__dict__.setdefault("firsts", {}).setdefault(id(seat), found)
        if len(seat.output) == seat.limit - 1:
            self._prefixes[self._prefix_key(seat)] = first
        return found


@mutant(
    "infer/second", killers=("infer.prefix_cache.not_the_output",), incident="NeMo-RL#3599", row="trained-as-submitted"
)
class KeepsOutputs(SecondInferenceEngine):
    """Answers a prompt asked again with the output it gave before."""

    async def generate(self, request: GenerationRequest) -> Generation:
        kept: dict[Any, Generation] = self.__dict__.setdefault("answers", {})  # Any: a key
        key = (self._version, request.input_ids, request.adapter, request.sampling.max_new_tokens)
        if len(request.input_ids) < 40 or key not in kept:
            kept[key] = await super().generate(request)
        return kept[key]


@mutant("infer/second", killers=("infer.experts.trace",), incident="Megatron-LM#4168", row="expert-replay")
class TraceIsOneTokenLate(SecondInferenceEngine):
    """Reports for each token the experts of the token before it."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        logits, routes = super()._next_logits(seat)
        before = self.__dict__.setdefault("before", {})
        late = before[id(seat)] if seat.output else routes
        before[id(seat)] = routes
        return logits, late


@mutant("infer/second", killers=("infer.experts.trace",))
class TraceOfWideNumbers(SecondInferenceEngine):
    """Reports experts as int64."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        logits, routes = super()._next_logits(seat)
        return logits, None if routes is None else routes.long()


@mutant("infer/second", killers=("infer.experts.trace",), incident="AReno#524", row="expert-replay")
class TraceRepeatsTheFirstLayer(SecondInferenceEngine):
    """Reports the first layer's experts for every layer."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        logits, routes = super()._next_logits(seat)
        return logits, None if routes is None else routes[:1].expand_as(routes)


@mutant("infer/second", killers=("infer.experts.after_update",), row="expert-replay")
class TraceOfTheFirstWeights(SecondInferenceEngine):
    """Routes the trace, not the tokens, with the router the folder had."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        serving, self._weights = self._weights, self._require().weights
        kept, self._prefixes = self._prefixes, {}
        _, routes = super()._next_logits(seat)
        self._weights, self._prefixes = serving, kept
        return super()._next_logits(seat)[0], routes


@mutant("infer/second", killers=("infer.experts.paused",), row="expert-replay")
class TraceLosesThePausedToken(SecondInferenceEngine):
    """Fills the row of the last token before a pause with zeros."""

    async def pause(self, mode: PauseMode) -> None:
        for seat in self._running:
            if seat.output and seat.output[-1].routes is not None:
                empty = torch.zeros_like(seat.output[-1].routes)
                seat.output[-1] = attrs.evolve(seat.output[-1], routes=empty)
        await super().pause(mode)


@mutant("infer/second", killers=("infer.experts.continued",), incident="SkyRL#1908", row="expert-replay")
class TraceOfAbortedIsLost(SecondInferenceEngine):
    """Returns no trace with what it aborts."""

    async def generate(self, request: GenerationRequest) -> Generation:
        result = await super().generate(request)
        return result if result.stop_reason != "aborted" else attrs.evolve(result, token_extras={})
