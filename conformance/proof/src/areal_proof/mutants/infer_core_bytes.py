"""Inference engines that lose bytes of an update, or say otherwise of them than they hold.

Knows: how receipts and held tensors of the reference generator can be bent.
Does not know: the two phases (`infer_core_weights`).
"""

from __future__ import annotations

import attrs
import torch

from areal_core.contract.inference import InferenceSpec
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.weights.fingerprint import fingerprint
from areal_proof.mutants import mutant
from areal_reference.infer.engine import ReferenceInferenceEngine


@mutant(
    "infer/reference",
    killers=("infer.weights.receipt", "infer.faults.flipped_bit"),
    row="update-chain",
    incident="NeMo-RL sparse delta",
)
class FingerprintsOfTheFirstTime(ReferenceInferenceEngine):
    """Computes fingerprints once, and reports those for every later version."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        first = vars(self).setdefault("first", receipt.fingerprints)
        return attrs.evolve(receipt, fingerprints=first)


@mutant("infer/reference", killers=("infer.weights.receipt",))
class ReceiptListsTies(ReferenceInferenceEngine):
    """Lists tied names in the receipt, though no bytes were sent for them."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        ties = {name: receipt.fingerprints[carrier] for name, carrier in source.manifest.tied.items()}
        return attrs.evolve(receipt, fingerprints={**receipt.fingerprints, **ties})


@mutant("infer/reference", killers=("infer.weights.receipt",))
class ReceiptCountsNumbers(ReferenceInferenceEngine):
    """Reports how many numbers arrived as how many bytes."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        return attrs.evolve(receipt, num_bytes=receipt.num_bytes // 4)


@mutant("infer/reference", killers=("infer.weights.cast",))
class FingerprintsAfterTheCast(ReferenceInferenceEngine):
    """Reports fingerprints of what it made of the tensors, not of what it was sent."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        spare = self._require().stage._spare
        return attrs.evolve(receipt, fingerprints={name: fingerprint(spare[name]) for name in receipt.fingerprints})


@mutant("infer/reference", killers=("infer.weights.by_witness",), row="served-policy-changes")
class LosesTheLastNumber(ReferenceInferenceEngine):
    """Proves every tensor, and then holds another last number in one of them."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        for name, spare in self._require().stage._spare.items():
            if name.endswith("k_proj.weight"):
                spare.view(-1)[-1] += 1e-6
        return receipt


class _Skipping(ReferenceInferenceEngine):
    """Keeps the old values of tensors whose names end so."""

    endings: tuple[str, ...] = ()

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        running = self._require()
        receipt = await super().receive_weights(source, version)
        for name, parameter in running.loaded.model.named_parameters():
            if name.endswith(self.endings):
                running.stage._spare[name].copy_(parameter.data)
        return receipt


@mutant(
    "infer/reference",
    killers=("infer.weights.every_tensor", "infer.weights.by_witness"),
    row="served-policy-changes",
    incident="verl#3821",
)
class SkipsTheFinalNorm(_Skipping):
    """Receives the final norm, and serves the old one."""

    endings = ("model.norm.weight",)


@mutant("infer/reference", killers=("infer.weights.every_tensor", "infer.weights.kinds"), row="served-policy-changes")
class SkipsBiases(_Skipping):
    """Receives biases, and serves the old ones."""

    endings = (".bias",)


@mutant("infer/reference", killers=("infer.weights.every_tensor",), row="served-policy-changes")
class SkipsTheLastLayersKeyNorm(_Skipping):
    """Receives one small norm of the last layer, and serves the old one."""

    endings = ("layers.1.self_attn.k_norm.weight",)


@mutant(
    "infer/reference",
    killers=("infer.weights.kinds",),
    row="one-destination",
    incident="torchtitan#2402",
)
class HeadTiedNoMore(ReferenceInferenceEngine):
    """Copies a tied head when it starts, and never updates the copy."""

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        info = await super().start(spec)
        model = self._require().loaded.model
        if model.config.tie_word_embeddings:
            frozen = model.get_input_embeddings().weight.detach().clone()
            model.lm_head.forward = lambda hidden: torch.nn.functional.linear(hidden, frozen)
            model.lm_head.frozen = True
        return info


@mutant("infer/reference", killers=("infer.weights.one_by_one",), row="no-drift", incident="slime delta")
class SkipsEqualTensorsInTwoBuffers(ReferenceInferenceEngine):
    """Does not copy a tensor equal to the last one sent, though its buffer holds the one before that."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        stage, mine = self._require().stage, vars(self)
        older = {name: tensor.clone() for name, tensor in stage._spare.items()}
        receipt = await super().receive_weights(source, version)
        last = mine.get("last", {})
        for name in older:
            if last.get(name) == receipt.fingerprints.get(name, ""):
                stage._spare[name].copy_(older[name])
        mine["last"] = receipt.fingerprints
        return receipt


@mutant("infer/reference", killers=("infer.weights.back_and_forth", "infer.weights.kinds"), row="served-policy-changes")
class AveragesWithWhatServes(ReferenceInferenceEngine):
    """Mixes one part in a hundred of the old weights into the new ones."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        running = self._require()
        receipt = await super().receive_weights(source, version)
        for name, parameter in running.loaded.model.named_parameters():
            running.stage._spare[name].lerp_(parameter.data, 0.01)
        return receipt


@mutant("infer/reference", killers=("infer.many.no_drift",), row="no-drift", incident="open-instruct#1473")
class DriftsALittle(ReferenceInferenceEngine):
    """Rounds anew at every update: each makes the weights a ten-thousandth larger than the one before."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        receipt = await super().receive_weights(source, version)
        factor = vars(self)["factor"] = vars(self).get("factor", 1.0) * 1.0001
        for spare in self._require().stage._spare.values():
            spare.mul_(factor)
        return receipt
