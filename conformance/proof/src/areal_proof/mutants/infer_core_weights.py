"""Inference engines that break the two phases of an update, or mind the state of a transfer badly.

Knows: how receiving, committing and aborting of the reference generator can be bent.
Does not know: updates that do not fit (`infer_core_coverage`), or bytes lost (`infer_core_bytes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import attrs
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed, VersionRegressed, WeightSyncError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceSpec, VersionSpan
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightManifest, WeightSource
from areal_proof.mutants import mutant
from areal_reference.infer.cache import CacheSlab
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch.testing.serving import OfferedWeights


class Passing:
    """A source that hands on another one's buckets, and shows each tensor on its way."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    @property
    def manifest(self) -> WeightManifest:
        return self._source.manifest

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        for bucket in self._source.buckets():
            yield {name: self.passed(name, tensor) for name, tensor in bucket.items()}

    def close(self) -> None:
        self._source.close()

    def passed(self, name: str, tensor: Tensor) -> Tensor:
        return tensor


@mutant("infer/reference", killers=("infer.weights.two_phase",), row="served-policy-changes")
class ServesOnReceipt(ReferenceInferenceEngine):
    """Serves weights as soon as they are received, under the old number."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt, running = await super().receive_weights(source, version), self._require()

        def swap() -> None:
            for name, parameter in running.loaded.model.named_parameters():
                spare = running.stage._spare[name]
                running.stage._spare[name] = spare.clone()
                parameter.data = spare

        await self._between_steps(swap)
        return receipt


class _Tearing(Passing):
    live: Mapping[str, Tensor]

    def passed(self, name: str, tensor: Tensor) -> Tensor:
        if name in self.live:
            self.live[name].copy_(tensor)
        return tensor


@mutant("infer/reference", killers=("infer.weights.torn",), row="served-policy-changes")
class TornUpdate(ReferenceInferenceEngine):
    """Writes tensors into the weights that serve, one by one as they arrive."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        tearing = _Tearing(source)
        tearing.live = {name: parameter.data for name, parameter in self._require().loaded.model.named_parameters()}
        return await super().receive_weights(tearing, version)


@mutant("infer/reference", killers=("infer.weights.torn", "infer.faults.stalled_source"), row="one-straggler")
class ReceivesInTheEventLoop(ReferenceInferenceEngine):
    """Blocks the event loop, and with it every request, while weights arrive."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        return self._require().stage.receive(source, version)


@mutant("infer/reference", killers=("infer.weights.aborted",), row="update-chain")
class AbortKeepsWhatWasReceived(ReferenceInferenceEngine):
    """Ignores `abort_weights`: the dropped version can still be committed."""

    async def abort_weights(self) -> None:
        self._require()


@mutant("infer/reference", killers=("infer.weights.abort_unstarted",))
class AbortOfNothingIsAnError(ReferenceInferenceEngine):
    """Raises when there is nothing to abort."""

    async def abort_weights(self) -> None:
        if self._require().stage.staged is None:
            raise WeightSyncError("there is no update to abort")
        await super().abort_weights()


@mutant("infer/reference", killers=("infer.weights.commit_unreceived",), row="update-chain")
class CommitsTheUnreceived(ReferenceInferenceEngine):
    """Takes the number of a version it never received."""

    async def commit_weights(self, version: int) -> None:
        stage = self._require().stage
        if stage.staged is None:
            stage.version = version
        else:
            await super().commit_weights(version)


@mutant("infer/reference", killers=("infer.weights.commit_unreceived",), row="update-chain")
class CommitsWhateverIsThere(ReferenceInferenceEngine):
    """Commits what it holds under whatever number it is told."""

    async def commit_weights(self, version: int) -> None:
        stage = self._require().stage
        if stage.staged is not None:
            stage.staged = version
        await super().commit_weights(version)


@mutant("infer/reference", killers=("infer.weights.regressed",), row="update-chain")
class TakesTheSameVersionAgain(ReferenceInferenceEngine):
    """Takes weights of the very version that serves."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        stage = self._require().stage
        served = stage.version
        stage.version = served - (version == served)
        try:
            return await super().receive_weights(source, version)
        finally:
            stage.version = served


@mutant("infer/reference", killers=("infer.weights.regressed",), row="failed-is-typed")
class RegressedIsAnyError(ReferenceInferenceEngine):
    """Refuses older weights with an error of no particular type."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        try:
            return await super().receive_weights(source, version)
        except VersionRegressed as error:
            raise ValueError(str(error)) from error


@mutant("infer/reference", killers=("infer.weights.other_manifest",), row="update-chain")
class DoesNotReadTheManifestsVersion(ReferenceInferenceEngine):
    """Takes the weights of another version than the one it was asked to receive."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        passing = Passing(source)
        renamed = attrs.evolve(source.manifest, version=version)
        other = type("Renamed", (Passing,), {"manifest": property(lambda _self: renamed)})
        passing.__class__ = other
        return await super().receive_weights(passing, version)


@mutant("infer/reference", killers=("infer.weights.received_twice",), row="update-chain")
class KeepsTheFirstReceived(ReferenceInferenceEngine):
    """Keeps what it holds when it is given another version to hold."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        stage = self._require().stage
        kept = {name: tensor.clone() for name, tensor in stage._spare.items()} if stage.staged is not None else None
        receipt = await super().receive_weights(source, version)
        if kept is not None:
            stage._spare.update(kept)
        return receipt


class _Lending(Passing):
    held: dict[str, Tensor]

    def passed(self, name: str, tensor: Tensor) -> Tensor:
        self.held[name] = tensor
        return tensor


@mutant("infer/reference", killers=("infer.weights.copied",), row="served-policy-changes")
class KeepsWhatWasLent(ReferenceInferenceEngine):
    """Keeps the tensors it was lent, and copies them when they are committed."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        lending = _Lending(source)
        lending.held = vars(self)["lent"] = {}
        return await super().receive_weights(lending, version)

    async def commit_weights(self, version: int) -> None:
        stage = self._require().stage
        for name, tensor in vars(self).get("lent", {}).items():
            if name in stage._spare and stage.staged == version:
                stage._spare[name].copy_(tensor)
        await super().commit_weights(version)


class _Scribbling(Passing):
    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        for bucket in self._source.buckets():
            yield {name: tensor.clone() for name, tensor in bucket.items()}
            for name, tensor in bucket.items():
                if name.endswith("k_proj.weight"):
                    tensor.mul_(1.0001)


@mutant("infer/reference", killers=("infer.weights.copied",))
class WritesIntoTheSource(ReferenceInferenceEngine):
    """Scales a lent tensor in place."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        return await super().receive_weights(_Scribbling(source), version)


class _Resuming(Passing):
    kept: dict[str, Tensor]

    def passed(self, name: str, tensor: Tensor) -> Tensor:
        return self.kept.setdefault(name, tensor.clone())


@mutant("infer/reference", killers=("infer.weights.after_abort",), row="update-chain")
class ResumesTheBrokenTransfer(ReferenceInferenceEngine):
    """Keeps the tensors of a transfer that broke off, and does not take them again from the next one."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        resuming = _Resuming(source)
        resuming.kept = vars(self).setdefault("kept", {})
        receipt = await super().receive_weights(resuming, version)
        resuming.kept.clear()
        return receipt


@mutant("infer/reference", killers=("infer.faults.failing_source", "infer.coverage.never_came"), row="update-chain")
class CommitsWhatBrokeOff(ReferenceInferenceEngine):
    """Holds what came of a transfer that broke off ready to be committed."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        try:
            return await super().receive_weights(source, version)
        except VersionRegressed:
            raise
        except Exception:
            stage = self._require().stage
            if stage._spare:
                stage.staged = version
            raise


@mutant("infer/reference", killers=("infer.faults.receive_cancelled",), row="dead-peer")
class CancelledReceiveLocksUpdates(ReferenceInferenceEngine):
    """Takes no more updates once a caller of `receive_weights` went away."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        if vars(self).get("busy"):
            raise WeightSyncError("another update is under way")
        vars(self)["busy"] = True
        try:
            receipt = await super().receive_weights(source, version)
        except Exception:
            vars(self)["busy"] = False
            raise
        vars(self)["busy"] = False
        return receipt


@mutant("infer/reference", killers=("infer.faults.crossing_updates",), row="control-messages", incident="NeMo-RL#2512")
class TwoTransfersOneBuffer(ReferenceInferenceEngine):
    """Lets two transfers land in one buffer, each in two halves."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
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
        return await super().receive_weights(OfferedWeights(source.manifest, tensors), version)


@mutant("infer/reference", killers=("infer.many.flat",), row="flat-memory", incident="slime#205")
class KeepsEveryVersion(ReferenceInferenceEngine):
    """Keeps a copy of every version it ever received."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        spare = self._require().stage._spare
        vars(self).setdefault("archive", []).append([tensor.clone() for tensor in spare.values()])
        return receipt


@mutant("infer/reference", killers=("infer.faults.not_finite",), row="failed-is-typed")
class ReportsNotANumber(ReferenceInferenceEngine):
    """Answers with a token and a log-prob that is no number where the weights are not finite."""

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            return await super().generate(request)
        except GenerationFailed as error:
            if "finite" not in str(error):
                raise
            version = self._require().stage.version
            spans = (VersionSpan(start=0, stop=1, version=version),)
            return Generation(
                output_ids=(2,), logprobs=(float("nan"),), version_spans=spans, stop_reason=StopReason.LENGTH
            )


class _Unclean(CacheSlab):
    def clear(self, rows) -> None:  # type: ignore[no-untyped-def]
        return


@mutant("infer/reference", killers=("infer.faults.not_finite",))
class CacheStaysPoisoned(ReferenceInferenceEngine):
    """Leaves what is not finite in the cache rows of requests that failed."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        self._require().cache.__class__ = _Unclean
        return info
