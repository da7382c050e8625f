"""What mutants of models are made of: a configuration read wrongly, a check of it left out.

Knows: where the engines built on transformers read a configuration, and what they refuse.
Does not know: defects; they are in the modules beside this one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from areal_core.contract.train import Head
from areal_proof.mutants.rows import Change, put, within
from areal_torch import hf

Misread = Callable[[Any], object]
"""Changes a configuration. Any: transformers is not typed here."""


def reads(change: Misread) -> Change:
    """Start with a configuration that a function has changed."""

    def context() -> AbstractContextManager[None]:
        original = hf.load_config

        def read(path: str, head: Head, *, images: bool = False) -> Any:
            config = original(path, head, images=images)
            change(config)
            return config

        return put(hf, load_config=read)

    return within(context)


def takes_anything(change: Misread) -> Change:
    """Start with whatever attention a configuration asks for, after a function has changed it."""
    return within(lambda: put(hf, _check_attention=lambda _path, config: change(config)))


def overlooks(**keys: Any) -> Change:
    """Start with a check of the configuration that finds other values than there are. Any: whatever it says."""

    def context() -> AbstractContextManager[None]:
        original = hf._check_attention

        def check(path: str, config: Any) -> None:
            seen = copy.deepcopy(config)
            says(**keys)(seen)
            original(path, seen)

        return put(hf, _check_attention=check)

    return within(context)


def says(**keys: Any) -> Misread:
    """Return what gives a configuration other values, where it has the key. Any: whatever it says."""

    def change(config: Any) -> None:
        for name, value in keys.items():
            if hasattr(config, name):
                setattr(config, name, value)

    return change


def turns(**keys: Any) -> Misread:
    """Return what gives rotary positions other numbers. Any: whatever a configuration says of them."""
    return lambda config: config.rope_parameters.update(keys) if hasattr(config, "rope_parameters") else None


def without_caps(config: Any) -> None:
    """Forget soft caps."""
    says(attn_logit_softcapping=None, final_logit_softcapping=None)(config)


def without_window(config: Any) -> None:
    """Forget sliding windows."""
    says(sliding_window=None, layer_types=None)(config)


def ungated(model: Any) -> None:
    """Let the gates of shared experts stand open."""
    for name, module in model.named_modules():
        if name.endswith("shared_expert_gate"):
            module.register_forward_hook(lambda _module, _inputs, output: output + 100.0)


def without_head_bias(model: Any) -> None:
    """Let the head of a model add nothing to its logits."""
    head = model.get_output_embeddings()
    if head.bias is not None:
        head.bias.data.zero_()
