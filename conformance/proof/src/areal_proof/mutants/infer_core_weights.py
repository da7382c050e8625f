"""Inference engines that break the two phases of an update, or mind the state of a transfer badly.

Knows: how receiving, committing and aborting of the reference generator can be bent.
Does not know: updates that do not fit (`infer_core_coverage`), or bytes lost (`infer_core_coverage`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import attrs
from torch import Tensor
from torch.nn import functional

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed, VersionRegressed, WeightSyncError
from areal_core.contract.inference import Generation, VersionSpan
from areal_core.contract.weights import WeightSource
from areal_proof.mutants.rows import Original, before, breaking, catches, put, row, then, within
from areal_proof.mutants.weight_parts import PassingSource
from areal_reference.infer.cache import CacheSlab
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch.testing.serving import OfferedWeights

breaks = breaking("infer/reference", ReferenceInferenceEngine)


@breaks("receive_weights", "infer.weights.two_phase", row="served-policy-changes")
async def ServesOnReceipt(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Serves weights as soon as they are received, under the old number."""
    receipt, running = await original(), self.running

    def swap() -> None:
        for name, parameter in running.loaded.model.named_parameters():
            spare = running.stage.spare[name]
            running.stage.spare[name] = spare.clone()
            parameter.data = spare

    await self.between_steps(swap)
    return receipt


class _Tearing(PassingSource):
    live: Mapping[str, Tensor]

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        if name in self.live:
            self.live[name].copy_(tensor)
        return tensor


@breaks("receive_weights", "infer.weights.torn", row="served-policy-changes")
async def TornUpdate(original: Original, self: ReferenceInferenceEngine, source: WeightSource, version: int) -> Any:
    """Writes tensors into the weights that serve, one by one as they arrive."""
    tearing = _Tearing(source)
    tearing.live = {name: parameter.data for name, parameter in self.running.loaded.model.named_parameters()}
    return await original(tearing, version)


@breaks("receive_weights", "infer.weights.other_manifest", row="update-chain")
async def DoesNotReadTheManifestsVersion(original: Original, source: WeightSource, version: int) -> Any:
    """Takes the weights of another version than the one it was asked to receive."""
    passing: Any = PassingSource(source)
    passing.announce = lambda manifest: attrs.evolve(manifest, version=version)
    return await original(passing, version)


@breaks("receive_weights", "infer.weights.received_twice", row="update-chain")
async def KeepsTheFirstReceived(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Keeps what it holds when it is given another version to hold."""
    stage = self.running.stage
    kept = {name: tensor.clone() for name, tensor in stage.spare.items()} if stage.staged is not None else None
    receipt = await original()
    if kept is not None:
        stage.spare.update(kept)
    return receipt


class _Lending(PassingSource):
    def __init__(self, inner: WeightSource, engine: Any) -> None:
        super().__init__(inner)
        self.lent = engine.lent = dict[str, Tensor]()

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        self.lent[name] = tensor
        return tensor


@breaks("commit_weights", "infer.weights.copied", row="served-policy-changes", lent={},
    receive_weights=lambda original, self, source, version: original(_Lending(source, self), version))  # fmt: skip
async def KeepsWhatWasLent(original: Original, self: Any, version: int) -> None:
    """Keeps the tensors it was lent, and copies them when they are committed."""
    stage = self.running.stage
    for name, tensor in self.lent.items():
        if name in stage.spare and stage.staged == version:
            stage.spare[name].copy_(tensor)
    await original()


class _Scribbling(PassingSource):
    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        for bucket in self.inner.buckets():
            yield {name: tensor.clone() for name, tensor in bucket.items()}
            for name, tensor in bucket.items():
                if name.endswith("k_proj.weight"):
                    tensor.mul_(1.0001)


class _Resuming(PassingSource):
    kept: dict[str, Tensor]

    def alter(self, name: str, tensor: Tensor) -> Tensor:
        return self.kept.setdefault(name, tensor.clone())


@breaks("receive_weights", "infer.weights.after_abort", row="update-chain")
async def ResumesTheBrokenTransfer(original: Original, self: Any, source: WeightSource, version: int) -> Any:
    """Keeps the tensors of a transfer that broke off, and does not take them again from the next one."""
    resuming = _Resuming(source)
    resuming.kept = vars(self).setdefault("kept", {})
    receipt = await original(resuming, version)
    resuming.kept.clear()
    return receipt


@breaks("receive_weights", "infer.faults.failing_source", "infer.coverage.never_came", row="update-chain")
async def CommitsWhatBrokeOff(original: Original, self: ReferenceInferenceEngine, version: int) -> Any:
    """Holds what came of a transfer that broke off ready to be committed."""
    try:
        return await original()
    except VersionRegressed:
        raise
    except Exception:
        stage = self.running.stage
        if stage.spare:
            stage.staged = version
        raise


@breaks("receive_weights", "infer.faults.receive_cancelled", row="dead-peer")
async def CancelledReceiveLocksUpdates(original: Original, self: Any) -> Any:
    """Takes no more updates once a caller of `receive_weights` went away."""
    if vars(self).get("busy"):
        raise WeightSyncError("another update is under way")
    vars(self)["busy"] = True
    try:
        receipt = await original()
    except Exception:
        vars(self)["busy"] = False
        raise
    vars(self)["busy"] = False
    return receipt


@breaks("receive_weights", "infer.faults.crossing_updates", incident="NeMo-RL#2512", row="control-messages")
async def TwoTransfersOneBuffer(original: Original, self: Any, source: WeightSource, version: int) -> Any:
    """Lets two transfers land in one buffer, each in two halves."""
    landing, running = vars(self).setdefault("landing", {}), vars(self).setdefault("running", [0])
    named = [(name, tensor.clone()) for bucket in source.buckets() for name, tensor in bucket.items()]
    running[0] += 1
    first = running[0] == 1
    half = len(named) // 2
    landing.update(named[:half])
    await asyncio.sleep(0.02 if first else 0.0)
    landing.update(named[half:])
    running[0] -= 1
    tensors = [(name, landing[name]) for name, _ in named if name in landing]
    return await original(OfferedWeights(source.manifest, tensors), version)


@breaks("commit_weights", "infer.weights.tied_again", row="served-policy-changes")
async def TiesTheFirstUpdateOnly(original: Original, self: ReferenceInferenceEngine) -> None:
    """Copies the embedding into a tied head in the first update, and keeps that head in the next ones."""
    await original()
    model = self.running.loaded.model
    if model.config.tie_word_embeddings:
        head = model.get_input_embeddings().weight.detach().clone()
        vars(model.lm_head).setdefault("forward", partial(functional.linear, weight=head))


@breaks("generate", "infer.faults.not_finite", row="failed-is-typed")
async def ReportsNotANumber(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Answers with a token and a log-prob that is no number where the weights are not finite."""
    try:
        return await original()
    except GenerationFailed as error:
        if "finite" not in str(error):
            raise
        version = self.running.stage.version
        spans = (VersionSpan(start=0, stop=1, version=version),)
        return Generation(output_ids=(2,), logprobs=(float("nan"),), version_spans=spans, stop_reason=StopReason.LENGTH)


class _Unclean(CacheSlab):
    def clear(self, rows) -> None:  # type: ignore[no-untyped-def]
        return


ROWS = breaks.rows(
    row("ReceivesInTheEventLoop", "Blocks the event loop, and with it every request, while weights arrive.",
        "infer.weights.torn", "infer.faults.stalled_source", row="one-straggler",
        receive_weights=lambda self, source, version: self.running.stage.receive(source, version)),
    row("AbortKeepsWhatWasReceived", "Ignores `abort_weights`: the dropped version can still be committed.",
        "infer.weights.aborted", row="update-chain", abort_weights=lambda self: self.running),
    row("AbortOfNothingIsAnError", "Raises when there is nothing to abort.", "infer.weights.abort_unstarted",
        abort_weights=before(lambda self: WeightSyncError("there is no update to abort")
            if self.running.stage.staged is None else None)),
    row("RegressedIsAnyError", "Refuses older weights with an error of no particular type.", "infer.weights.regressed",
        row="failed-is-typed", receive_weights=catches(VersionRegressed, lambda error: ValueError(str(error)))),
    row("WritesIntoTheSource", "Scales a lent tensor in place.", "infer.weights.copied",
        receive_weights=lambda original, source, version: original(_Scribbling(source), version)),
    row("KeepsEveryVersion", "Keeps a copy of every version it ever received.", "infer.many.flat",
        incident="slime#205", row="flat-memory",
        receive_weights=then(lambda self: self.__dict__.setdefault("archive",
            []).append([tensor.clone() for tensor in self.running.stage.spare.values()]))),
    row("CacheStaysPoisoned", "Leaves what is not finite in the cache rows of requests that failed.",
        "infer.faults.not_finite", start=then(lambda self: setattr(self.running.cache, "__class__", _Unclean))),
    row("TakesTheSameVersionAgain", "Takes weights of the very version that serves.", "infer.weights.regressed",
        row="update-chain",
        receive_weights=within(lambda self, version: put(self.running.stage,
            version=self.running.stage.version - (version == self.running.stage.version)))),
    row("CommitsTheUnreceived", "Takes the number of a version it never received.",
        "infer.weights.commit_unreceived", row="update-chain",
        commit_weights=lambda original, self, version: original(version) if self.running.stage.staged is not None
            else setattr(self.running.stage, "version", version)),
    row("CommitsWhateverIsThere", "Commits what it holds under whatever number it is told.",
        "infer.weights.commit_unreceived", row="update-chain",
        commit_weights=before(lambda self, version: setattr(self.running.stage, "staged", version)
            if self.running.stage.staged is not None else None)),
)  # fmt: skip
