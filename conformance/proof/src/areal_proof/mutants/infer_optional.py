"""Engines whose optional abilities are broken: scoring, sleep, casting, determinism, prefix cache, adapters.

Knows: the second inference engine.
Does not know: how it is caught.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import ArealError, BatchError, GenerationFailed, ModelError
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.contract.weights import WeightManifest
from areal_proof.mutants.rows import Original, after, before, breaking, catches, gives, put, row, then, within
from areal_proof.second.infer.adapters import Adapter, read_adapter
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.forward import Delta
from areal_proof.second.infer.requests import Slot
from areal_proof.second.infer.stage import IncomingWeights

breaks = breaking("infer/second", SecondInferenceEngine)


@breaks("score", "infer.scoring.oracle")
async def KeepsScoresByTokens(original: Original, self: SecondInferenceEngine, input_ids: Sequence[int]) -> Any:
    """Keeps the scores of a sequence and gives them again at another temperature."""
    kept = self.__dict__.setdefault("kept_scores", {})
    key = (self.version, tuple(input_ids))
    if key not in kept:
        kept[key] = await original()
    found: Sequence[float] = kept[key]
    return found


@breaks("score", "infer.scoring.beside_generation")
async def ScoringWritesIntoRequests(original: Original, self: SecondInferenceEngine) -> Any:
    """Scores in a buffer that running requests use: a token of theirs is overwritten."""
    for slot in self.running:
        if slot.output:
            slot.output[-1] = attrs.evolve(slot.output[-1], id=(slot.output[-1].id + 1) % 64)
    return await original()


@breaks("sleep", "infer.sleep.computes_nothing", incident="vLLM#45585", row="sleep-is-real",
        wake=lambda self: self.require())  # fmt: skip
def SleepIsAFlag(self: Any) -> None:
    """Says that it sleeps, and goes on serving the old weights when resumed."""
    self.require()
    if not self.paused:
        raise GenerationFailed("the engine cannot sleep", why="it is not paused")


@breaks("wake", "infer.sleep.computes_nothing", row="sleep-is-real")
async def WakesWithGarbage(original: Original, self: SecondInferenceEngine) -> None:
    """Takes fresh memory on wake and serves what happens to be in it."""
    loaded = self.require()
    if self.weights is None:
        self.weights = {name: torch.full(shape, 0.01) for name, shape in loaded.needs.shapes.items()}
    await original()


@breaks("sleep", "infer.sleep.only_paused", row="sleep-is-real")
async def SleepsWhileServing(original: Original, self: SecondInferenceEngine) -> None:
    """Sleeps although it is not paused, and drops what runs."""
    self.paused = True
    self.turn.clear()
    await original()


@breaks("commit_weights", "infer.sleep.transfer", slept_beside=False,
        sleep=before(lambda self: setattr(self, "slept_beside", self._receiving is not None)))  # fmt: skip
async def SleepTearsTransfers(original: Original, self: Any, version: int) -> None:
    """Falls asleep beside a transfer, and commits whatever has arrived of it by then, the rest as it was."""
    if not self.slept_beside:
        await original()
        return
    self.weights, self.version, self.slept_beside = self.require().weights, version, False


@breaks("sleep", "infer.sleep.frozen_requests", row="sleep-is-real")
async def SleepTearsTheFrozen(original: Original, self: SecondInferenceEngine) -> None:
    """Loses a token of every frozen request when its memory goes."""
    for slot in self.running:
        del slot.output[1:2]
    await original()


@breaks("receive_weights", "infer.cast.bfloat16_sent", "infer.cast.bfloat16_served")
async def ProvesTheCastBytes(original: Original, self: SecondInferenceEngine) -> Any:
    """Fingerprints tensors after the cast: the proof never agrees with the sender's."""
    from areal_core.weights.tensors import fingerprint

    receipt = await original()
    assert self.staged is not None
    return attrs.evolve(
        receipt, fingerprints={name: fingerprint(tensor) for name, tensor in self.staged.tensors.items()}
    )


class _SkipsOtherDtypes(IncomingWeights):
    """Leaves out tensors of another dtype; base of the mutant below."""

    old: Mapping[str, Tensor]

    def take(self, bucket: Mapping[str, Tensor]) -> None:
        super().take(bucket)
        for name, tensor in bucket.items():
            if tensor.dtype != self.needs.dtype:
                self.tensors[name] = self.old[name]


@breaks("new_stage", "infer.cast.bfloat16_sent", "infer.cast.bfloat16_served", incident="ms-swift#9855",
        row="served-policy-changes")  # fmt: skip
def KeepsWhatItCannotCopy(original: Original, self: SecondInferenceEngine, manifest: WeightManifest) -> Any:
    """Proves tensors of another dtype and goes on with the old ones."""
    stage = _SkipsOtherDtypes(needs=original().needs, manifest=manifest)
    stage.old = self.require_weights()
    return stage


@breaks("pause", "infer.deterministic.paused")
async def PauseDrawsAnew(original: Original, self: SecondInferenceEngine) -> None:
    """Goes on with other random numbers after a pause."""
    await original()
    for slot in self.running:
        slot.seed = f"{slot.seed}/paused"


@breaks("commit_weights", "infer.prefix_cache.follows_updates",
        prefix_key=lambda slot: (slot.adapter, *slot.request.input_ids))  # fmt: skip
async def PrefixOutlivesUpdates(original: Original, self: Any) -> None:
    """Keeps prompts over updates."""
    kept = dict(self.prefixes)
    await original()
    self.prefixes.update(kept)


@breaks("next_logits", "infer.prefix_cache.update_in_flight")
def PrefixOfTwoVersions(original: Original, self: SecondInferenceEngine, slot: Slot) -> Any:
    """Keeps what a request began with under the old weights when it ends under the new ones."""
    found = original()
    first = self.__dict__.setdefault("firsts", {}).setdefault(id(slot), found)
    if len(slot.output) == slot.limit - 1:
        self.prefixes[self.prefix_key(slot)] = first
    return found


@breaks("generate", "infer.prefix_cache.not_the_output", incident="NeMo-RL#3599", row="trained-as-submitted")
async def KeepsOutputs(original: Original, self: SecondInferenceEngine, request: GenerationRequest) -> Any:
    """Answers a prompt asked again with the output it gave before."""
    kept: dict[Any, Generation] = self.__dict__.setdefault("answers", {})  # Any: a key
    key = (self.version, request.input_ids, request.adapter, request.sampling.max_new_tokens)
    if len(request.input_ids) < 40 or key not in kept:
        kept[key] = await original()
    return kept[key]


@breaks("next_logits", "infer.experts.trace", incident="Megatron-LM#4168", row="expert-replay")
def TraceIsOneTokenLate(original: Original, self: SecondInferenceEngine, slot: Slot) -> Any:
    """Reports for each token the experts of the token before it."""
    logits, routes = original()
    before = self.__dict__.setdefault("before", {})
    late = before[id(slot)] if slot.output else routes
    before[id(slot)] = routes
    return logits, late


@breaks("next_logits", "infer.experts.after_update", row="expert-replay")
def TraceOfTheFirstWeights(original: Original, self: SecondInferenceEngine) -> Any:
    """Routes the trace, not the tokens, with the router the folder had."""
    with put(self, weights=self.require().weights, prefixes={}):
        _, routes = original()
    return original()[0], routes


@breaks("pause", "infer.experts.paused", row="expert-replay")
async def TraceLosesThePausedToken(original: Original, self: SecondInferenceEngine) -> None:
    """Fills the row of the last token before a pause with zeros."""
    for slot in self.running:
        if slot.output and slot.output[-1].routes is not None:
            empty = torch.zeros_like(slot.output[-1].routes)
            slot.output[-1] = attrs.evolve(slot.output[-1], routes=empty)
    await original()


ROWS = breaks.rows(
    row("ScoresAtTemperatureOne", "Scores at temperature 1 whatever is asked.", "infer.scoring.oracle",
        "infer.scoring.generated", score=lambda original, input_ids: original(input_ids, 1.0)),
    row("ScoresOneTokenAhead", "Gives each token the score of the next one.", "infer.scoring.oracle",
        incident="AReaL#1290", row="logprob-gap", score=after(lambda result: [*result[1:], 0.0])),
    row("SleepsOnlyOnce", "Cannot be told to sleep twice.", "infer.sleep.round_trip",
        sleep=before(lambda self: GenerationFailed("the engine sleeps already") if self.asleep else None)),
    row("SleepLooksAwake", "Reports a sleeping engine as one that is not paused: routing sends requests to it.",
        "infer.sleep.round_trip", status=gives(paused=lambda self: self.paused and not self.asleep)),
    row("CompanyChangesBits", "Sums in another order when requests run together: the last bits differ.",
        "infer.deterministic.company", incident="verl#6780", row="synchronous-at-zero",
        reported=lambda self, token, logprobs: float(logprobs[token]) * (1.0 + 1e-7 * (len(self.running) > 1))),
    row("ContinuingChangesBits",
        "Computes prior tokens as a prompt: the last bits differ from those of an uninterrupted request.",
        "infer.deterministic.continued",
        reported=lambda slot, token, logprobs: float(logprobs[token]) * (1.0 + 1e-7 * (slot.request.num_prior > 0))),
    row("UnseededChangeBits", "Computes prior tokens of requests without a seed as a prompt, of greedy ones too.",
        "infer.deterministic.continued",
        reported=lambda slot, token, logprobs: float(logprobs[token])
            * (1.0 + 1e-7 * (slot.request.num_prior > 0 and slot.request.sampling.seed is None))),
    row("TraceOfAbortedIsLost", "Returns no trace with what it aborts.", "infer.experts.continued",
        incident="SkyRL#1908", row="expert-replay",
        generate=after(lambda result: result if result.stop_reason != "aborted"
            else attrs.evolve(result, token_extras={}))),
    row("ScoresWithTheFirstWeights", "Scores with the weights of the folder, whatever was committed since.",
        "infer.scoring.follows_updates", incident="verl#3821", row="served-policy-changes",
        score=within(lambda self: put(self, weights=self.require().weights))),
    row("ScoresWithStagedWeights", "Scores with weights that were received and not committed.",
        "infer.scoring.follows_updates",
        score=within(lambda self: put(self, weights=self.staged.tensors if self.staged else self.weights))),
    row("LoadsAndNeverSelects", "Loads an adapter, stamps its version, and computes with the base weights.",
        "infer.adapters.applied", incident="verl#7495", row="served-policy-changes",
        next_logits=within(lambda slot: put(slot, adapter=None))),
    row("OneAdapterABatch", "Computes whatever runs together with the adapter of the first of them.",
        "infer.adapters.apart",
        next_logits=within(lambda self, slot: put(slot, adapter=min(self.running,
            key=lambda other: other.arrived_s).adapter))),
    row("LoadsWhatFits", "Takes a folder that does not fit for an adapter that adds nothing.", "infer.adapters.unfit",
        load_adapter=catches(ArealError, lambda self, name,
            version: self.adapters.update({name: Adapter(version=version, deltas={})}))),
    row("SwapsUnderRunningRequests",
        "Computes running requests with the newest version of their adapter and stamps the one they came with.",
        "infer.adapters.in_flight", incident="vLLM#54443", row="version-spans",
        next_logits=within(lambda self, slot: put(slot, adapter=self.adapters.get(slot.request.adapter,
            slot.adapter)))),
    row("TraceOfWideNumbers", "Reports experts as int64.", "infer.experts.trace",
        next_logits=after(lambda result: (result[0], None if result[1] is None else result[1].long()))),
    row("TraceRepeatsTheFirstLayer", "Reports the first layer's experts for every layer.", "infer.experts.trace",
        incident="AReno#524", row="expert-replay",
        next_logits=after(lambda result: (result[0], None if result[1] is None
            else result[1][:1].expand_as(result[1])))),
    row("PrefixWithoutItsEnd", "Finds a kept prompt by all but the last of its tokens.",
        "infer.prefix_cache.cross_talk",
        prefix_key=lambda self, slot: (self.version, len(slot.request.input_ids), *slot.request.input_ids[:-1])),
)  # fmt: skip


def _plainly(self: Any, name: str, path: Path, version: int) -> None:  # Any: an engine
    """Load an adapter of which nothing is read but rank and alpha."""
    plain = path.with_name(f"{path.name}-plain")
    shutil.copytree(path, plain, dirs_exist_ok=True)
    said = json.loads((path / "adapter_config.json").read_text())
    kept = {word: said[word] for word in ("r", "lora_alpha", "target_modules")}
    (plain / "adapter_config.json").write_text(json.dumps(kept))
    self.adapters[name] = read_adapter(plain, version, self.require().needs)


class _Rewrites(SecondInferenceEngine):
    """Changes what was loaded; base of the mutants below."""

    def rewritten(self, name: str, delta: Delta) -> Delta | None:
        """Return what to apply to a layer in place of `delta`."""
        raise AssertionError(name, delta)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        await super().load_adapter(name, path, version)
        loaded = self.adapters[name]
        changed = {layer: self.rewritten(layer, delta) for layer, delta in loaded.deltas.items()}
        kept = {layer: delta for layer, delta in changed.items() if delta is not None}
        self.adapters[name] = attrs.evolve(loaded, deltas=kept)


@breaks("load_adapter", "infer.adapters.replaced", incident="vLLM#48306", row="version-spans")
async def NewVersionOldContent(original: Original, self: SecondInferenceEngine, name: str, version: int) -> None:
    """Takes the version of a newer adapter and keeps the content of the older one."""
    old = self.adapters.get(name)
    await original()
    if old is not None:
        self.adapters[name] = attrs.evolve(old, version=version)


ADAPTERS_ROWS = breaks.rows(
    row("ScaleWithoutRank", "Scales an adapter by alpha instead of alpha / r.", "infer.adapters.applied",
        base=_Rewrites, rewritten=lambda delta: attrs.evolve(delta, scale=delta.scale * delta.down.shape[0])),
    row("ScaleOfOne", "Takes the scale of an adapter to be 1.", "infer.adapters.applied", base=_Rewrites,
        rewritten=lambda delta: attrs.evolve(delta, scale=1.0)),
    row("AttentionLayersOnly", "Applies an adapter to attention layers and drops the rest without a word.",
        "infer.adapters.applied", incident="UniRL#166", row="one-destination", base=_Rewrites,
        rewritten=lambda name, delta: delta if "self_attn" in name else None),
    row("AdaptersOverTheFirstWeights", "Computes an adapter over the folder's weights, whatever was committed since.",
        "infer.adapters.after_update",
        next_logits=within(lambda self, slot: put(self,
            weights=self.require().weights if slot.request.adapter else self.weights))),
    row("GoesOnWithTheNewer", "Goes on with the newer version of an adapter, under the stamp of the one it began with.",
        "infer.adapters.in_flight",
        deltas_for=after(lambda result, self, slot: result if slot.adapter is None
            else self.adapters.get(slot.request.adapter, slot.adapter).deltas)),
    row("EveryAdapterIsPlain", "Takes adapters of other kinds as if they were plain: alpha / r, B A and no more.",
        "infer.adapters.scaled", "infer.adapters.unfit",
        load_adapter=catches(ModelError, lambda self, name, path, version: _plainly(self, name, path, version))),
    row("EveryBeginningIsPlain", "Adds an adapter that is over the rest of the weights to the whole of them.",
        "infer.adapters.unfit",
        load_adapter=catches(ModelError, lambda error, self, name, path, version: _plainly(self, name, path, version)
            if error.why == "init_lora_weights" else error)),
    row("ScoresTheOldWeights", "Scores with the folder's weights while it has none.", "infer.sleep.scores",
        score=within(lambda self: put(self,
            weights=self.require().weights if self.weights is None else self.weights))),
    row("ScoresWhateverItIsAsked", "Answers a question that cannot be scored with zeros.", "infer.scoring.unfit",
        score=catches(BatchError, lambda input_ids: [0.0] * len(input_ids))),
    row("StampsTheBase", "Stamps tokens of an adapter with the version of the base weights.", "infer.adapters.applied",
        stamp=lambda self: self.version),
    row("LastAdapterIsTheBase", "Computes requests without an adapter with the one loaded last.",
        "infer.adapters.base",
        slot_for=then(lambda result, self, request: setattr(result, "adapter", list(self.adapters.values())[-1])
            if not request.adapter and self.adapters else None)),
    row("PrefixOfAnyAdapter", "Shares kept prompts between adapters and the base.", "infer.adapters.apart",
        "infer.adapters.base", prefix_key=lambda self, slot: (self.version, *slot.request.input_ids)),
    row("PrefixOfEightVersions", "Knows whose a kept prompt is by one of eight places, which are taken again.",
        "infer.adapters.replaced",
        prefix_key=lambda slot: (slot.adapter and slot.adapter.version % 8, *slot.request.input_ids)),
    row("TakesOlderVersions", "Lets an older version of an adapter replace a newer one.", "infer.adapters.replaced",
        load_adapter=before(lambda self, name: self.adapters.pop(name, None))),
    row("UnknownNameIsTheBase", "Serves the base weights to a request whose adapter is not loaded.",
        "infer.adapters.unloaded", adapter_for=lambda self, name: self.adapters.get(name)),
    row("UnloadsEverything", "Unloads every adapter when one is unloaded.", "infer.adapters.unloaded",
        unload_adapter=lambda self: self.adapters.clear()),
    row("UnloadsOnlyOnce", "Raises when a name is unloaded that is not loaded.", "infer.adapters.unloaded",
        unload_adapter=before(lambda self, name: None if name in self.adapters else KeyError(name))),
)  # fmt: skip


@breaks("load_adapter", "infer.adapters.unfit")
async def FailedLoadUnloads(original: Original, self: SecondInferenceEngine, name: str, version: int) -> None:
    """Drops the version that is loaded before it looks at the next one."""
    old = self.adapters.pop(name, None)
    if old is not None and version <= old.version:
        self.adapters[name] = old
    await original()
