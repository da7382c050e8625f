"""Read the weights a model computes with back under their Hugging Face names: the witness of an update.

A linear layer whose weights the CPU kernel has packed away is asked what it does to the unit vectors; that is its
weight, exactly, because every other product is zero.

Knows: vLLM's linear and embedding layers, its fused names.
Does not know: experts, quantised weights, more than one worker: it refuses those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from areal_vllm.inside.loading import plain


class NotReadable(RuntimeError):
    """The model has layers whose weights cannot be read back."""


@torch.no_grad()
def weights_in_use(runner: Any) -> dict[str, Tensor]:
    """Return every weight, whole, on the CPU, tied ones once. Any: vLLM's runner.

    Raises:
        NotReadable: a layer of a kind this does not know.
    """
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    model = runner.get_model()
    if runner.vllm_config.parallel_config.world_size != 1:
        raise NotReadable("a worker holds a part of each weight only")
    fused = getattr(model, "packed_modules_mapping", {})
    tied = bool(getattr(runner.vllm_config.model_config.hf_text_config, "tie_word_embeddings", False))
    found: dict[str, Tensor] = {}
    for name, layer in model.named_modules():
        name = plain(f"{name}.")[:-1].removesuffix(".base_layer")
        if isinstance(layer, VocabParallelEmbedding):
            if not (tied and name.endswith("lm_head")):
                found[f"{name}.weight"] = _table(layer)
        elif isinstance(layer, LinearBase):
            found.update(_linear(name, layer, fused))
        elif any(True for _ in layer.parameters(recurse=False)) and ".experts." in f".{name}.":
            raise NotReadable(f"{name} holds experts, packed together")
        else:
            found.update({f"{name}.{key}": value for key, value in layer.named_parameters(recurse=False)})
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in found.items()}


def _table(layer: Any) -> Tensor:
    """Return an embedding's rows, without those vLLM pads with."""
    if layer.weight.numel():
        rows: Tensor = layer.weight[: layer.org_vocab_size]
        return rows
    return _by_unit_vectors(layer, layer.embedding_dim)[: layer.org_vocab_size]


def _linear(name: str, layer: Any, fused: dict[str, list[str]]) -> dict[str, Tensor]:
    weight = layer.weight if layer.weight.numel() else _by_unit_vectors(layer, layer.input_size)
    head, _, last = name.rpartition(".")
    parts = fused.get(last, [last])
    sizes = _sizes(layer, weight) if len(parts) > 1 else [weight.shape[0]]
    found = {}
    for key, whole in (("weight", weight), ("bias", getattr(layer, "bias", None))):
        if whole is not None:
            found.update({f"{head}.{p}.{key}": t for p, t in zip(parts, whole.split(sizes), strict=True)})
    return found


def _sizes(layer: Any, weight: Tensor) -> list[int]:
    sizes = getattr(layer, "output_sizes", None) or getattr(layer, "output_partition_sizes", None)
    if not sizes or sum(sizes) != weight.shape[0]:
        raise NotReadable(f"{type(layer).__name__} is fused of parts whose sizes it does not tell")
    return [int(size) for size in sizes]


def _by_unit_vectors(layer: Any, width: int) -> Tensor:
    """Return the weight [out, in] of a layer that has packed it away."""
    dtype = getattr(layer, "params_dtype", None) or layer.weight.dtype
    units = torch.eye(width, dtype=dtype, device=layer.weight.device)
    outputs: Tensor = layer.quant_method.apply(layer, units)
    return outputs.T
