"""Inference engines that make an unfit update fit, silently, instead of refusing it.

Knows: how each way not to fit can be papered over.
Does not know: the two phases.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import CoverageError
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest, WeightSource
from areal_core.weights.specs import spec_of, torch_dtype
from areal_proof.mutants import mutant
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch.testing.serving import OfferedWeights

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
        return {name: parameter.data for name, parameter in self._require().loaded.model.named_parameters()}


@mutant("infer/reference", killers=("infer.coverage.missing",), row="one-destination", incident="UniRL#166")
class KeepsWhatIsMissing(_Repairing):
    """Serves on with its old tensor where an update brings none."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        announced = {spec.name for spec in manifest.tensors} | set(manifest.tied)
        more = [(name, tensor) for name, tensor in self.own().items() if name not in announced]
        whole = (*manifest.tensors, *(spec_of(name, tensor) for name, tensor in more))
        return attrs.evolve(manifest, tensors=whole), [*named, *more]


@mutant("infer/reference", killers=("infer.coverage.extra",), row="one-destination", incident="sglang#9379")
class IgnoresTheUnknown(_Repairing):
    """Ignores a tensor it has no place for."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        own, announced = self.own(), {spec.name for spec in manifest.tensors}
        if not set(own) < announced:
            return manifest, named
        known = [(name, tensor) for name, tensor in named if name in own]
        return announcing(known, manifest), known


@mutant("infer/reference", killers=("infer.coverage.renamed",), row="one-destination")
class GuessesNames(_Repairing):
    """Puts a tensor of an unknown name where one of its shape is missing."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
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


@mutant("infer/reference", killers=("infer.coverage.shape",), row="one-destination")
class SpreadsOneNumber(_Shaping):
    """Spreads a tensor of one number over all its places."""

    def shaped(self, tensor: Tensor, like: Tensor) -> Tensor:
        return tensor.expand_as(like).clone() if tensor.numel() == 1 else tensor


@mutant("infer/reference", killers=("infer.coverage.shape",), row="one-destination")
class TransposesToFit(_Shaping):
    """Transposes a tensor that fits the other way round."""

    def shaped(self, tensor: Tensor, like: Tensor) -> Tensor:
        turned = tensor.ndim == 2 and tensor.shape != like.shape and tensor.T.shape == like.shape
        return tensor.T.contiguous() if turned else tensor


@mutant("infer/reference", killers=("infer.coverage.shape",), row="one-destination")
class CutsTheVocabulary(_Shaping):
    """Cuts rows off a tensor that has too many."""

    def shaped(self, tensor: Tensor, like: Tensor) -> Tensor:
        longer = tensor.ndim == like.ndim == 2 and tensor.shape[0] > like.shape[0]
        return tensor[: like.shape[0]].clone() if longer and tensor.shape[1] == like.shape[1] else tensor


@mutant("infer/reference", killers=("infer.coverage.dtype",))
class CastsIntegers(_Repairing):
    """Takes whole numbers for weights."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        if manifest.tensors != tuple(spec_of(*item) for item in named):
            return manifest, named
        cast = [(name, tensor if tensor.is_floating_point() else tensor.float()) for name, tensor in named]
        return announcing(cast, manifest), cast


@mutant("infer/reference", killers=("infer.coverage.other_than_announced",))
class CastsToWhatWasAnnounced(_Repairing):
    """Casts a tensor to the dtype that was announced for it."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        announced = {spec.name: spec for spec in manifest.tensors}
        return manifest, [
            (name, tensor.to(torch_dtype(announced[name])) if self._wider(announced.get(name), tensor) else tensor)
            for name, tensor in named
        ]

    def _wider(self, spec: TensorSpec | None, tensor: Tensor) -> bool:
        return spec is not None and tensor.dtype is torch.float64


@mutant("infer/reference", killers=("infer.coverage.other_than_announced",))
class IgnoresTheUnannounced(_Repairing):
    """Ignores a tensor that comes without having been announced."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        announced = {spec.name for spec in manifest.tensors}
        return manifest, [(name, tensor) for name, tensor in named if name in announced]


@mutant("infer/reference", killers=("infer.coverage.never_came",), row="one-destination")
class EndsWhenTheSourceEnds(_Repairing):
    """Takes an update for complete when nothing more comes."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        own, came = self.own(), {name for name, _ in named}
        more = [(spec.name, own[spec.name]) for spec in manifest.tensors if spec.name not in came and spec.name in own]
        return manifest, [*named, *more]


@mutant("infer/reference", killers=("infer.coverage.twice",), row="one-destination")
class TheLastOneWins(_Repairing):
    """Takes the last of two tensors of one name."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        once = dict(named)
        specs = {spec.name: spec for spec in manifest.tensors}
        return attrs.evolve(manifest, tensors=tuple(specs.values())), list(once.items())


@mutant("infer/reference", killers=("infer.coverage.tied_missing",), row="one-destination", incident="torchtitan#2402")
class AssumesItsOwnTies(_Repairing):
    """Takes an update that says nothing of a tie for one that has it."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        names = {spec.name for spec in manifest.tensors}
        if self._require().loaded.model.config.tie_word_embeddings and "lm_head.weight" not in names | set(
            manifest.tied
        ):
            return attrs.evolve(manifest, tied={"lm_head.weight": "model.embed_tokens.weight"}), named
        return manifest, named


@mutant("infer/reference", killers=("infer.coverage.tied_wrongly",), row="one-destination")
class DoesNotReadTies(_Repairing):
    """Does not look what a tied name is tied to."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        if not manifest.tied:
            return manifest, named
        return attrs.evolve(manifest, tied={"lm_head.weight": "model.embed_tokens.weight"}), named


@mutant("infer/reference", killers=("infer.coverage.head_of_its_own",), row="one-destination")
class DropsTheOtherHead(_Repairing):
    """Drops a head that its own model does not have."""

    def repaired(self, manifest: WeightManifest, named: Named) -> tuple[WeightManifest, Named]:
        names = {spec.name for spec in manifest.tensors}
        if "lm_head.weight" not in names or "lm_head.weight" in self.own():
            return manifest, named
        own = [(name, tensor) for name, tensor in named if name != "lm_head.weight"]
        return announcing(own, manifest, {"lm_head.weight": "model.embed_tokens.weight"}), own


@mutant(
    "infer/reference",
    killers=("infer.coverage.missing", "infer.coverage.never_came", "infer.coverage.renamed"),
    row="served-policy-changes",
)
class RefusesTooLate(_Repairing):
    """Refuses an unfit update after it wrote the part that fits into the weights that serve."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        named = [(name, tensor) for bucket in source.buckets() for name, tensor in bucket.items()]
        try:
            return await super().receive_weights(OfferedWeights(source.manifest, named), version)
        except CoverageError:
            own = self.own()
            for name, tensor in named:
                if name in own and own[name].shape == tensor.shape:
                    own[name].copy_(tensor)
            raise


@mutant("infer/reference", killers=("infer.coverage.missing", "infer.coverage.extra"), row="failed-is-typed")
class UnfitIsAKeyError(ReferenceInferenceEngine):
    """Lets an unfit update fail with whatever its dictionary raises."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        try:
            return await super().receive_weights(source, version)
        except CoverageError as error:
            raise KeyError(str(error)) from error
