"""Trainers that take one family of models for another, or for one like most of its kind.

Knows: what each reads otherwise.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from areal_proof.mutants.rows import breaking, put, row, then, within
from areal_proof.mutants.train_parts import hugging_face
from areal_proof.mutants.zoo_parts import (
    overlooks,
    reads,
    says,
    takes_anything,
    turns,
    ungated,
    without_caps,
    without_head_bias,
    without_window,
)
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import attention, hf

breaks = breaking("train/reference", ReferenceTrainEngine)


def _draws(model: Any) -> None:
    """Let modules drop again."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
            module.train()


def _drops_layers(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "layerdrop"):
            module.layerdrop, module.training = 0.5, True


def _jitters(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "jitter_noise"):
            module.jitter_noise, module.training = 0.2, True


def _forget_positions(path: Path) -> None:
    file = path / "config.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in said.items() if key != "rope_scaling"}))


_UNREFUSED = within(lambda: put(attention, _refuse=lambda _options: None))


ROWS = breaks.rows(
    row("UsualTheta", "Turns by the usual theta, whatever config.json says.", "train.zoo.llama",
        start=reads(turns(rope_theta=10000.0))),
    row("PassesOfOneAngle", "Takes models whose angles depend on the longest sequence of a pass.", "train.zoo.llama",
        start=within(lambda: put(hf, _check_positions=lambda _path, _config: None))),
    row("UsualEpsilon", "Norms with the usual epsilon, whatever config.json says.", "train.zoo.qwen2",
        start=reads(says(rms_norm_eps=1e-6))),
    row("ScalingNotSaved", "Leaves the scaling of rotary positions out of the config.json it saves.",
        "train.zoo.qwen3", save_weights=then(lambda path: _forget_positions(path))),
    row("GatesAlwaysNormalised", "Normalises the gates of experts, whatever config.json says.", "train.zoo.qwen3_moe",
        start=reads(says(norm_topk_prob=True))),
    row("SharedExpertUngated", "Adds the whole answer of shared experts.", "train.zoo.qwen2_moe",
        start=then(lambda self: ungated(hugging_face(self)))),
    row("WindowIgnored", "Attends to everything where config.json names a window.", "train.zoo.mistral",
        start=takes_anything(without_window)),
    row("RoutersJitter", "Lets routers see noisy inputs, as the model's makers trained it.", "train.zoo.mixtral",
        start=then(lambda self: _jitters(hugging_face(self)))),
    row("LogitsUnscaled", "Does not divide the logits of families that do.", "train.zoo.granite",
        start=reads(says(logits_scaling=1.0))),
    row("LogitScaleInverted", "Divides the logits by what they are to be multiplied by.", "train.zoo.cohere",
        start=reads(lambda config: says(logit_scale=1.0 / getattr(config, "logit_scale", 1.0))(config))),
    row("WholeHeadsTurned", "Turns all of a head where config.json names a part.", "train.zoo.glm4",
        start=reads(turns(partial_rotary_factor=1.0))),
    row("HeadWithoutBias", "Starts with a bias of zero on the head, whatever the folder holds.", "train.zoo.phi",
        start=then(lambda self: without_head_bias(hugging_face(self)))),
    row("DropoutOfOtherName", "Turns dropout off by its usual name only.", "train.zoo.gpt2",
        start=then(lambda self: _draws(hugging_face(self)))),
    row("LayersDropped", "Leaves layers out at random, as config.json says.", "train.zoo.opt",
        start=then(lambda self: _drops_layers(hugging_face(self)))),
    row("CapOfLogitsIgnored", "Looks for caps in attention only, and leaves out one of the logits.", "train.zoo.gemma2",
        start=overlooks(final_logit_softcapping=None)),
    row("SoftCapsIgnored", "Computes a model of soft caps without them.", "train.zoo.gemma2",
        start=takes_anything(without_caps)),
    row("SinksIgnored", "Attends as most models do, whatever else a model hands to its attention.",
        "train.zoo.gpt_oss", start=_UNREFUSED, forward=_UNREFUSED, train_step=_UNREFUSED),
)  # fmt: skip
