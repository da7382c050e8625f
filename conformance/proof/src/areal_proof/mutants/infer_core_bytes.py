"""Inference engines that lose bytes of an update, or say otherwise of them than they hold.

Knows: how receipts and held tensors of the reference generator can be bent.
Does not know: the two phases (`infer_core_weights`).
"""

from __future__ import annotations

from typing import Any

import attrs
import torch

from areal_core.contract.weights import Receipt, WeightSource
from areal_core.weights.fingerprint import fingerprint
from areal_proof.mutants.rows import Original, breaking, gives, row
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/reference", ReferenceInferenceEngine)


@breaks("receive_weights", "infer.weights.cast")
async def FingerprintsAfterTheCast(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Reports fingerprints of what it made of the tensors, not of what it was sent."""
    receipt = await original()
    spare = self._require().stage._spare
    return attrs.evolve(receipt, fingerprints={name: fingerprint(spare[name]) for name in receipt.fingerprints})


@breaks("receive_weights", "infer.weights.by_witness", row="served-policy-changes")
async def LosesTheLastNumber(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Proves every tensor, and then holds another last number in one of them."""
    receipt = await original()
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


ROWS = breaks.rows(
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


@breaks("start", "infer.weights.kinds", incident="torchtitan#2402", row="one-destination")
async def HeadTiedNoMore(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Copies a tied head when it starts, and never updates the copy."""
    info = await original()
    model = self._require().loaded.model
    if model.config.tie_word_embeddings:
        frozen = model.get_input_embeddings().weight.detach().clone()
        model.lm_head.forward = lambda hidden: torch.nn.functional.linear(hidden, frozen)
        model.lm_head.frozen = True
    return info


@breaks("receive_weights", "infer.weights.one_by_one", incident="slime delta", row="no-drift")
async def SkipsEqualTensorsInTwoBuffers(original: Original, self: Any) -> Any:
    """Does not copy a tensor equal to the last one sent, though its buffer holds the one before that."""
    stage, mine = self._require().stage, vars(self)
    older = {name: tensor.clone() for name, tensor in stage._spare.items()}
    receipt = await original()
    last = mine.get("last", {})
    for name in older:
        if last.get(name) == receipt.fingerprints.get(name, ""):
            stage._spare[name].copy_(older[name])
    mine["last"] = receipt.fingerprints
    return receipt


@breaks("receive_weights", "infer.weights.back_and_forth", "infer.weights.kinds", row="served-policy-changes")
async def AveragesWithWhatServes(original: Original, self: ReferenceInferenceEngine) -> Any:
    """Mixes one part in a hundred of the old weights into the new ones."""
    running = self._require()
    receipt = await original()
    for name, parameter in running.loaded.model.named_parameters():
        running.stage._spare[name].lerp_(parameter.data, 0.01)
    return receipt


@breaks("receive_weights", "infer.many.no_drift", incident="open-instruct#1473", row="no-drift")
async def DriftsALittle(original: Original, self: Any) -> Any:
    """Rounds anew at every update: each makes the weights a ten-thousandth larger than the one before."""
    receipt = await original()
    factor = vars(self)["factor"] = vars(self).get("factor", 1.0) * 1.0001
    for spare in self._require().stage._spare.values():
        spare.mul_(factor)
    return receipt
