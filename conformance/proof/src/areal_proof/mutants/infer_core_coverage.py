"""Inference engines that make an unfit update fit silently, lose bytes of one, or say otherwise of them than they hold.

Knows: how each way not to fit can be papered over, and how receipts and held tensors can be bent.
Does not know: the two phases (`infer_core_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import CoverageError
from areal_core.contract.weights import Receipt, WeightManifest, WeightSource
from areal_core.weights.tensors import fingerprint, spec_of, torch_dtype
from areal_proof.mutants.rows import Original, breaking, catches, gives, row
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch.testing.serving import OfferedWeights

breaks_reference = breaking("infer/reference", ReferenceInferenceEngine)

Named = list[tuple[str, Tensor]]


def announcing(named: Named, manifest: WeightManifest, tied: Mapping[str, str] | None = None) -> WeightManifest:
    """Return a manifest of exactly these tensors."""
    specs = tuple(spec_of(name, tensor) for name, tensor in named)
    return WeightManifest(version=manifest.version, tensors=specs, tied=manifest.tied if tied is None else tied)


class _Repairing(ReferenceInferenceEngine):
    """Reads the whole source, and receives what `repaired` makes of it."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        named = [(name, tensor) for bucket in source.buckets() for name, tensor in bucket.items()]
        manifest, tensors = self.repaired(source.manifest, named)
        return await super().receive_weights(OfferedWeights(manifest, tensors), version)

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        return manifest, named

    def own(self) -> dict[str, Tensor]:
        return {name: parameter.data for name, parameter in self.running.loaded.model.named_parameters()}


breaks = breaking("infer/reference", _Repairing)


@breaks("repaired", "infer.coverage.missing", incident="UniRL#166", row="one-destination")
def KeepsWhatIsMissing(self: _Repairing, manifest: WeightManifest, named: Named) -> Any:
    """Serves on with its old tensor where an update brings none."""
    announced = {spec.name for spec in manifest.tensors} | set(manifest.tied)
    more = [(name, tensor) for name, tensor in self.own().items() if name not in announced]
    whole = (*manifest.tensors, *(spec_of(name, tensor) for name, tensor in more))
    return attrs.evolve(manifest, tensors=whole), [*named, *more]


@breaks("repaired", "infer.coverage.extra", incident="sglang#9379", row="one-destination")
def IgnoresTheUnknown(self: _Repairing, manifest: WeightManifest, named: Named) -> Any:
    """Ignores a tensor it has no place for."""
    own, announced = self.own(), {spec.name for spec in manifest.tensors}
    if not set(own) < announced:
        return manifest, named
    known = [(name, tensor) for name, tensor in named if name in own]
    return announcing(known, manifest), known


@breaks("repaired", "infer.coverage.renamed", row="one-destination")
def GuessesNames(self: _Repairing, manifest: WeightManifest, named: Named) -> Any:
    """Puts a tensor of an unknown name where one of its shape is missing."""
    own = self.own()
    missing = [name for name in own if name not in {spec.name for spec in manifest.tensors}]
    unknown = [name for name, _ in named if name not in own]
    if len(missing) != 1 or len(unknown) != 1:
        return manifest, named
    guessed = [(missing[0] if name == unknown[0] else name, tensor) for name, tensor in named]
    return announcing(guessed, manifest), guessed


class _Shaping(_Repairing):
    """Makes tensors of another shape fit."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        if manifest.tensors != tuple(spec_of(*item) for item in named):
            return manifest, named
        own = self.own()
        shaped = [(name, self.shaped(tensor, own[name]) if name in own else tensor) for name, tensor in named]
        return announcing(shaped, manifest), shaped

    def shaped(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor


@breaks("repaired", "infer.coverage.dtype")
def CastsIntegers(manifest: WeightManifest, named: Named) -> Any:
    """Takes whole numbers for weights."""
    if manifest.tensors != tuple(spec_of(*item) for item in named):
        return manifest, named
    cast = [(name, tensor if tensor.is_floating_point() else tensor.float()) for name, tensor in named]
    return announcing(cast, manifest), cast


@breaks("repaired", "infer.coverage.other_than_announced")
def CastsToWhatWasAnnounced(manifest: WeightManifest, named: Named) -> Any:
    """Casts a tensor to the dtype that was announced for it."""
    announced = {spec.name: spec for spec in manifest.tensors}
    return manifest, [
        (
            name,
            tensor.to(torch_dtype(announced[name])) if tensor.dtype is torch.float64 and name in announced else tensor,
        )
        for name, tensor in named
    ]


@breaks("repaired", "infer.coverage.other_than_announced")
def IgnoresTheUnannounced(manifest: WeightManifest, named: Named) -> Any:
    """Ignores a tensor that comes without having been announced."""
    announced = {spec.name for spec in manifest.tensors}
    return manifest, [(name, tensor) for name, tensor in named if name in announced]


@breaks("repaired", "infer.coverage.never_came", row="one-destination")
def EndsWhenTheSourceEnds(self: _Repairing, manifest: WeightManifest, named: Named) -> Any:
    """Takes an update for complete when nothing more comes."""
    own, came = self.own(), {name for name, _ in named}
    more = [(spec.name, own[spec.name]) for spec in manifest.tensors if spec.name not in came and spec.name in own]
    return manifest, [*named, *more]


@breaks("repaired", "infer.coverage.tied_missing", incident="torchtitan#2402", row="one-destination")
def AssumesItsOwnTies(self: _Repairing, manifest: WeightManifest, named: Named) -> Any:
    """Takes an update that says nothing of a tie for one that has it."""
    names = {spec.name for spec in manifest.tensors}
    if self.running.loaded.model.config.tie_word_embeddings and "lm_head.weight" not in names | set(manifest.tied):
        return attrs.evolve(manifest, tied={"lm_head.weight": "model.embed_tokens.weight"}), named
    return manifest, named


ROWS = breaks.rows(
    row("TheLastOneWins", "Takes the last of two tensors of one name.", "infer.coverage.twice", row="one-destination",
        repaired=lambda manifest, named: (attrs.evolve(manifest, tensors=tuple({spec.name: spec
            for spec in manifest.tensors}.values())), list(dict(named).items()))),
    row("DoesNotReadTies", "Does not look what a tied name is tied to.", "infer.coverage.tied_wrongly",
        row="one-destination",
        repaired=lambda manifest, named: (manifest, named) if not manifest.tied
            else (attrs.evolve(manifest, tied={"lm_head.weight": "model.embed_tokens.weight"}), named)),
)  # fmt: skip


@breaks("repaired", "infer.coverage.head_of_its_own", row="one-destination")
def DropsTheOtherHead(self: _Repairing, manifest: WeightManifest, named: Named) -> Any:
    """Drops a head that its own model does not have."""
    names = {spec.name for spec in manifest.tensors}
    if "lm_head.weight" not in names or "lm_head.weight" in self.own():
        return manifest, named
    own = [(name, tensor) for name, tensor in named if name != "lm_head.weight"]
    return announcing(own, manifest, {"lm_head.weight": "model.embed_tokens.weight"}), own


@breaks("receive_weights", "infer.coverage.missing", "infer.coverage.never_came", "infer.coverage.renamed",
        row="served-policy-changes")  # fmt: skip
async def RefusesTooLate(original: Original, self: _Repairing, source: WeightSource, version: int) -> Any:
    """Refuses an unfit update after it wrote the part that fits into the weights that serve."""
    named = [(name, tensor) for bucket in source.buckets() for name, tensor in bucket.items()]
    try:
        return await original(OfferedWeights(source.manifest, named), version)
    except CoverageError:
        own = self.own()
        for name, tensor in named:
            if name in own and own[name].shape == tensor.shape:
                own[name].copy_(tensor)
        raise


REFERENCE_ROWS = breaks_reference.rows(
    row("SpreadsOneNumber", "Spreads a tensor of one number over all its places.", "infer.coverage.shape",
        row="one-destination", base=_Shaping,
        shaped=lambda tensor, like: tensor.expand_as(like).clone() if tensor.numel() == 1 else tensor),
    row("TransposesToFit", "Transposes a tensor that fits the other way round.", "infer.coverage.shape",
        row="one-destination", base=_Shaping,
        shaped=lambda tensor, like: tensor.T.contiguous() if tensor.ndim == 2 and tensor.shape != like.shape
            and (tensor.T.shape == like.shape) else tensor),
    row("CutsTheVocabulary", "Cuts rows off a tensor that has too many.", "infer.coverage.shape",
        row="one-destination", base=_Shaping,
        shaped=lambda tensor, like: tensor[: like.shape[0]].clone() if (tensor.ndim == like.ndim == 2
            and tensor.shape[0] > like.shape[0]) and tensor.shape[1] == like.shape[1] else tensor),
    row("UnfitIsAKeyError", "Lets an unfit update fail with whatever its dictionary raises.", "infer.coverage.missing",
        "infer.coverage.extra", row="failed-is-typed",
        receive_weights=catches(CoverageError, lambda error: KeyError(str(error)))),
)  # fmt: skip


@breaks_reference("receive_weights", "infer.weights.cast")
async def FingerprintsAfterTheCast(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Reports fingerprints of what it made of the tensors, not of what it was sent."""
    receipt = await original()
    spare = self.running.stage.spare
    return attrs.evolve(receipt, fingerprints={name: fingerprint(spare[name]) for name in receipt.fingerprints})


@breaks_reference("receive_weights", "infer.weights.by_witness", row="served-policy-changes")
async def LosesTheLastNumber(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Proves every tensor, and then holds another last number in one of them."""
    receipt = await original()
    for name, spare in self.running.stage.spare.items():
        if name.endswith("k_proj.weight"):
            spare.view(-1)[-1] += 1e-6
    return receipt


class _Skipping(ReferenceInferenceEngine):
    """Keeps the old values of tensors whose names end so."""

    endings: tuple[str, ...] = ()

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        running = self.running
        receipt = await super().receive_weights(source, version)
        for name, parameter in running.loaded.model.named_parameters():
            if name.endswith(self.endings):
                running.stage.spare[name].copy_(parameter.data)
        return receipt


CORE_BYTES_ROWS = breaks_reference.rows(
    row("FingerprintsOfTheFirstTime", "Computes fingerprints once, and reports those for every later version.",
        "infer.weights.receipt", "infer.faults.flipped_bit", incident="NeMo-RL sparse delta", row="update-chain",
        receive_weights=gives(
            fingerprints=lambda result, self: self.__dict__.setdefault("first", result.fingerprints))),
    row("ReceiptListsTies", "Lists tied names in the receipt, though no bytes were sent for them.",
        "infer.weights.receipt",
        receive_weights=gives(fingerprints=lambda result, source: {**result.fingerprints,
            **{name: result.fingerprints[carrier] for name, carrier in source.manifest.tied.items()}})),
    row("ReceiptCountsNumbers", "Reports how many numbers arrived as how many bytes.", "infer.weights.receipt",
        receive_weights=gives(num_bytes=lambda result: result.num_bytes // 4)),
    row("SkipsTheFinalNorm", "Receives the final norm, and serves the old one.", "infer.weights.every_tensor",
        "infer.weights.by_witness", incident="verl#3821", row="served-policy-changes", base=_Skipping,
        endings=("model.norm.weight",)),
    row("SkipsBiases", "Receives biases, and serves the old ones.", "infer.weights.every_tensor",
        "infer.weights.kinds", row="served-policy-changes", base=_Skipping, endings=(".bias",)),
    row("SkipsTheLastLayersKeyNorm", "Receives one small norm of the last layer, and serves the old one.",
        "infer.weights.every_tensor", row="served-policy-changes", base=_Skipping,
        endings=("layers.1.self_attn.k_norm.weight",)),
)  # fmt: skip


@breaks_reference("start", "infer.weights.kinds", incident="torchtitan#2402", row="one-destination")
async def HeadTiedNoMore(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Copies a tied head when it starts, and never updates the copy."""
    info = await original()
    model = self.running.loaded.model
    if model.config.tie_word_embeddings:
        frozen = model.get_input_embeddings().weight.detach().clone()
        model.lm_head.forward = lambda hidden: torch.nn.functional.linear(hidden, frozen)
        model.lm_head.frozen = True
    return info


@breaks_reference("receive_weights", "infer.weights.one_by_one", incident="slime delta", row="no-drift")
async def SkipsEqualTensorsInTwoBuffers(original: Original, self: Any) -> Any:
    """Does not copy a tensor equal to the last one sent, though its buffer holds the one before that."""
    stage, mine = self.running.stage, vars(self)
    older = {name: tensor.clone() for name, tensor in stage.spare.items()}
    receipt = await original()
    last = mine.get("last", {})
    for name in older:
        if last.get(name) == receipt.fingerprints.get(name, ""):
            stage.spare[name].copy_(older[name])
    mine["last"] = receipt.fingerprints
    return receipt


@breaks_reference("receive_weights", "infer.weights.back_and_forth", "infer.weights.kinds", row="served-policy-changes")
async def AveragesWithWhatServes(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Mixes one part in a hundred of the old weights into the new ones."""
    running = self.running
    receipt = await original()
    for name, parameter in running.loaded.model.named_parameters():
        running.stage.spare[name].lerp_(parameter.data, 0.01)
    return receipt


@breaks_reference("receive_weights", "infer.many.no_drift", incident="open-instruct#1473", row="no-drift")
async def DriftsALittle(original: Original, self: Any) -> Any:
    """Rounds anew at every update: each makes the weights a ten-thousandth larger than the one before."""
    receipt = await original()
    factor = vars(self)["factor"] = vars(self).get("factor", 1.0) * 1.0001
    for spare in self.running.stage.spare.values():
        spare.mul_(factor)
    return receipt
