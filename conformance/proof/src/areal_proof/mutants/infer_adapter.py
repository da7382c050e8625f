"""Engines whose policy is an adapter, and that serve something else.

Knows: the second inference engine.
Does not know: how it is caught.
"""

from __future__ import annotations

from typing import Any

import attrs

from areal_core.contract.errors import ModelError
from areal_core.contract.weights import WeightManifest
from areal_proof.mutants.rows import Original, after, breaking, catches, put, row, then, within
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.requests import Slot
from areal_proof.second.infer.stage import IncomingWeights

breaks = breaking("infer/second", SecondInferenceEngine)


def _is_adapter(self: Any) -> bool:
    return self.require().spec.lora is not None


def _rescaled(policy: Any, factor: Any) -> Any:
    """Return what a policy adds with another scale. Any: layer -> Delta, and a function of one."""
    return policy and {layer: attrs.evolve(delta, scale=factor(delta)) for layer, delta in policy.items()}


@breaks("serve", "infer.policy_adapter.replaces")
def AddsToTheLast(original: Original, self: SecondInferenceEngine) -> Any:
    """Merges the adapter that serves into the weights before it takes the next one: each is on top of all before."""
    if self.policy and self.weights is not None:
        weights = dict(self.weights)
        for layer, delta in self.policy.items():
            name = f"{layer}.weight"
            weights[name] = weights[name] + (delta.scale * delta.up @ delta.down).to(weights[name].dtype)
        self.weights = weights
    return original()


@breaks("new_stage", "infer.policy_adapter.coverage", incident="UniRL#166", row="one-destination")
def TakesWhateverComes(original: Original, self: SecondInferenceEngine, manifest: WeightManifest) -> Any:
    """Takes every A and B that is sent and waits for no other."""
    if not _is_adapter(self):
        return original()
    shapes = {spec.name: spec.shape for spec in manifest.tensors}
    return IncomingWeights(needs=attrs.evolve(self.require().needs, shapes=shapes, tied={}), manifest=manifest)


@breaks("receive_weights", "infer.policy_adapter.two_phase")
async def NumberIsTheContent(original: Original, self: SecondInferenceEngine, version: int) -> Any:
    """Keeps what it received under its number, and takes that again when the number comes again."""
    receipt = await original()
    if _is_adapter(self) and self.staged is not None:
        kept = self.__dict__.setdefault("kept_adapters", {})
        self.staged.tensors = kept.setdefault(version, self.staged.tensors)
    return receipt


@breaks("receive_weights", "infer.policy_adapter.two_phase")
async def LoadsIntoWhatServes(original: Original, self: SecondInferenceEngine) -> Any:
    """Loads an adapter over the one that serves as it arrives, before any commit."""
    receipt = await original()
    if _is_adapter(self) and self.staged is not None:
        version = self.version
        self.serve(self.staged)
        self.version = version
        self.prefixes.clear()
    return receipt


@breaks("deltas_for", "infer.policy_adapter.in_flight", incident="vLLM#54443", row="version-spans")
def KeepsTheAdapterItBeganWith(original: Original, self: SecondInferenceEngine, slot: Slot) -> Any:
    """Goes on with the adapter a request began with, and stamps the one committed meanwhile."""
    if slot.adapter is not None or not _is_adapter(self):
        return original()
    return self.__dict__.setdefault("begun_with", {}).setdefault(id(slot), self.policy)


ROWS = breaks.rows(
    row("LoadsThePolicyAndServesTheBase", "Receives, proves and stamps adapters, and computes with the base weights.",
        "infer.policy_adapter.replaces", incident="ms-swift#9855", row="served-policy-changes",
        deltas_for=lambda self, slot: slot.deltas),
    row("ServesTheFirstAdapter", "Serves the first adapter that was committed, under every later number.",
        "infer.policy_adapter.replaces", incident="verl#3821", row="served-policy-changes",
        serve=after(lambda self: put_first(self))),
    row("PolicyScaleWithoutRank", "Scales the policy's adapter by alpha instead of alpha / rank.",
        "infer.policy_adapter.replaces",
        deltas_for=after(lambda result, self, slot: result if slot.adapter is not None
            else _rescaled(result, lambda delta: delta.scale * delta.down.shape[0]))),
    row("PolicyScaleOfOne", "Takes the scale of the policy's adapter to be 1.", "infer.policy_adapter.replaces",
        deltas_for=after(lambda result, slot: result if slot.adapter is not None
            else _rescaled(result, lambda delta: 1.0))),
    row("PolicyOnAttentionOnly", "Applies the policy's adapter to attention layers and drops the rest.",
        "infer.policy_adapter.replaces", incident="UniRL#166", row="one-destination",
        deltas_for=after(lambda result, slot: result if slot.adapter is not None or not result
            else {layer: delta for layer, delta in result.items() if "self_attn" in layer})),
    row("ScoresWithoutThePolicysAdapter", "Scores with the base weights, whatever adapter was committed.",
        "infer.policy_adapter.scored", incident="verl#3821", row="served-policy-changes",
        score=within(lambda self: put(self, policy=None))),
    row("NamedOnTopOfThePolicy", "Computes a request that names an adapter with the policy's as well.",
        "infer.policy_adapter.beside_named",
        deltas_for=after(lambda result, self, slot: result if slot.adapter is None
            else {**(self.policy or {}), **(result or {})})),
    row("UnloadDropsThePolicy", "Goes back to the base weights when an adapter is unloaded.",
        "infer.policy_adapter.beside_named", unload_adapter=then(lambda self: setattr(self, "policy", None))),
    row("BeginsAsTheBase", "Serves the base weights as version 0 where the spec names an adapter to begin with.",
        "infer.policy_adapter.begins", begun=lambda self: None),
    row("UnfitBeginsAsTheBase", "Begins with the base weights where the adapter to begin with does not fit.",
        "infer.policy_adapter.begins", begun=catches(ModelError, lambda: None)),
    row("WakesOverAnEmptyBase", "Comes back from sleep with zeros where the folder's weights were.",
        "infer.policy_adapter.sleeps", wake=then(lambda self: _emptied(self) if _is_adapter(self) else None)),
    row("ReceiptOfHalf", "Gives a receipt for every A, and for no B.", "infer.policy_adapter.receipt",
        receive_weights=after(lambda result, self: attrs.evolve(result, fingerprints={name: digits
            for name, digits in result.fingerprints.items() if "lora_B" not in name}))),
    row("TakesAnOlderAdapter", "Takes an adapter that is older than the one that serves.",
        "infer.policy_adapter.regressed",
        _check_version=lambda original, self: None if _is_adapter(self) else original()),
)  # fmt: skip


def _emptied(self: Any) -> None:
    self.weights = {name: tensor.new_zeros(tensor.shape) for name, tensor in self.require().weights.items()}


def put_first(self: Any) -> None:
    """Serve the first adapter again."""
    self.policy = self.__dict__.setdefault("first_policy", self.policy)
