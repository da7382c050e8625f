"""Generators that take one family of models for another, or sample as a folder recommends.

Knows: what each reads otherwise.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from areal_core.contract.inference import InferenceSpec
from areal_proof.mutants.rows import before, breaking, given, put, row, then, within
from areal_proof.mutants.zoo_parts import (
    reads,
    says,
    takes_anything,
    turns,
    ungated,
    without_caps,
    without_head_bias,
    without_window,
)
from areal_reference.infer import attention, loading
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch import hf

breaks = breaking("infer/reference", ReferenceInferenceEngine)


def _look(self: Any, spec: InferenceSpec) -> None:
    """Remember whether the folder recommends how to sample."""
    file = Path(spec.model_path, "generation_config.json")
    self.recommends = file.is_file() and "top_k" in file.read_text()


@contextmanager
def _unprobed() -> Iterator[None]:
    """Take any attention for plain, and do not compare it with the model's own."""
    ignored = attention.IGNORED_ARGUMENTS | {"s_aux"}
    with put(attention, IGNORED_ARGUMENTS=ignored), put(loading, _agrees_with_eager=lambda *_: True):
        yield


@contextmanager
def _any_places() -> Iterator[None]:
    """Take every kind of rotary positions."""
    with put(loading, BATCH_DEPENDENT_ROPE=frozenset()), put(hf, _check_positions=lambda *_: None):
        yield


def _exact_gelu(config: Any) -> None:
    """Read every approximation of gelu as gelu itself."""
    for name in ("hidden_act", "activation_function", "hidden_activation"):
        if "gelu" in str(getattr(config, name, "")):
            setattr(config, name, "gelu")


def _usual_for_small(config: Any) -> None:
    """Read every small epsilon as the usual one."""
    if getattr(config, "rms_norm_eps", 1.0) < 1e-4:
        config.rms_norm_eps = 1e-6


ROWS = breaks.rows(
    row("ServesUsualTheta", "Turns by the usual theta, whatever config.json says.", "infer.zoo.llama",
        start=reads(turns(rope_theta=10000.0))),
    row("ServesPlacesOfTheLongest", "Serves models whose places depend on the longest sequence of the batch.",
        "infer.zoo.llama", start=within(lambda: _any_places())),
    row("ServesUsualEpsilon", "Norms with the usual epsilon, whatever config.json says.", "infer.zoo.qwen2",
        start=reads(says(rms_norm_eps=1e-6))),
    row("SamplesAsRecommended", "Samples from as many tokens as generation_config.json recommends.",
        "infer.zoo.qwen3", recommends=False, start=before(lambda self, spec: _look(self, spec)),
        generate=given(sampling=lambda self, request: attrs.evolve(request.sampling, top_k=2) if self.recommends
            else request.sampling)),
    row("ServesGatesNormalised", "Normalises the gates of experts, whatever config.json says.",
        "infer.zoo.qwen3_moe", start=reads(says(norm_topk_prob=True))),
    row("ServesSharedUngated", "Adds the whole answer of shared experts.", "infer.zoo.qwen2_moe",
        start=then(lambda self: ungated(self.running.loaded.model))),
    row("ServesWithoutWindow", "Attends to everything where config.json names a window.", "infer.zoo.mistral",
        start=takes_anything(without_window)),
    row("OneExpertLess", "Asks one expert for each token, whatever config.json says.", "infer.zoo.mixtral",
        start=reads(says(num_experts_per_tok=1))),
    row("ServesUnscaled", "Does not divide the logits of families that do.", "infer.zoo.granite",
        start=reads(says(logits_scaling=1.0))),
    row("ServesScaleInverted", "Divides the logits by what they are to be multiplied by.", "infer.zoo.cohere",
        start=reads(lambda config: says(logit_scale=1.0 / getattr(config, "logit_scale", 1.0))(config))),
    row("ServesWholeHeadsTurned", "Turns all of a head where config.json names a part.", "infer.zoo.glm4",
        start=reads(turns(partial_rotary_factor=1.0))),
    row("ServesWithoutHeadBias", "Leaves out what the head adds to its logits.", "infer.zoo.phi",
        start=then(lambda self: without_head_bias(self.running.loaded.model))),
    row("ServesAnotherEpsilon", "Knows the epsilon of RMS norms, and no other.", "infer.zoo.gpt2",
        start=reads(says(layer_norm_epsilon=1e-5))),
    row("ServesAnotherActivation", "Takes every feed-forward layer for one of gelu.", "infer.zoo.opt",
        start=reads(says(activation_function="gelu"))),
    row("ServesWithoutCaps", "Computes a model of soft caps without them.", "infer.zoo.gemma2",
        start=takes_anything(without_caps)),
    row("ServesWithoutSinks", "Attends as most models do, whatever else a model hands to its attention.",
        "infer.zoo.gpt_oss", start=within(lambda: _unprobed())),
    row("ServesExactGelu", "Computes gelu itself where config.json names its approximation.", "infer.zoo.gpt2",
        "infer.zoo.phi", start=reads(_exact_gelu)),
    row("ServesUsualForSmall", "Takes an epsilon of 1e-6 for one of 1e-5.", "infer.zoo.llama", "infer.zoo.qwen3",
        start=reads(_usual_for_small)),
)  # fmt: skip
