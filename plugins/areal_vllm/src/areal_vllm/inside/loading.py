"""Put staged weights into the running model, whole or not at all as far as vLLM's loader lets one know.

vLLM repacks linear weights after loading, so a bare `model.load_weights` later fails midway and leaves a model
of two versions. The loader is therefore wrapped in vLLM's own layer-wise reload, which unpacks each layer, loads
it, repacks it and copies it into the tensors the compiled graphs point to.

Knows: vLLM's layer-wise reload.
Does not know: where a folder comes from, or when it is safe to load (`pause` first).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from areal_serving.proof import read_tensors


class LoadIncomplete(RuntimeError):
    """Weights did not reach every parameter: the model must not be served from."""


def load_folder(runner: Any, folder: Path) -> int:
    """Load every tensor of `folder` into the model of a worker's model runner; return how many there were.

    Any: vLLM's runner.

    Raises:
        LoadIncomplete: vLLM's loader left a parameter out.
    """
    return load_tensors(runner, read_tensors(folder))


def load_tensors(runner: Any, tensors: Iterable[tuple[str, Tensor]]) -> int:
    """Load tensors under their Hugging Face names; return how many there were. Any: vLLM's runner.

    Raises:
        LoadIncomplete: vLLM's loader left a parameter out.
    """
    model = runner.get_model()
    wanted = open_layers(model, runner.device)
    counted = _Counted(tensors)
    try:
        loaded = model.load_weights(counted)
    finally:
        close_layers(model, runner.vllm_config.model_config, runner.device)
    forget_derived(runner)
    expect_whole(wanted, loaded)
    return counted.num


def open_layers(model: Any, device: Any) -> set[str]:
    """Unpack every layer for loading; return the names that have to be loaded. Any: vLLM's model, torch.device."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    wanted = parameter_names(model)
    initialize_layerwise_reload(model)
    if device.type == "cpu":
        _repack_experts(model)
    return wanted


def close_layers(model: Any, model_config: Any, device: Any) -> None:
    """Pack every layer again; what was not loaded is as before. Any: vLLM's own, torch.device."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    finalize_layerwise_reload(model, model_config)
    if device.type == "cpu":
        _repack_heads(model)


def expect_whole(wanted: Collection[str], loaded: Collection[str] | None) -> None:
    """Compare the names that had to be loaded with those that were; None from loaders that do not tell.

    Raises:
        LoadIncomplete: names the first that were not.
    """
    missing = sorted(set(wanted) - {plain(name) for name in loaded}) if loaded is not None else []
    if missing:
        raise LoadIncomplete(f"vLLM's loader left out {len(missing)} of {len(wanted)} parameters: {missing[:4]}")


def _repack_experts(model: Any) -> None:
    """Have experts packed again for the CPU kernel: vLLM does it on the first load only, and would compute nonsense."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)  # Any: vLLM's own
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def _repack_heads(model: Any) -> None:
    """Pack output heads again: one tied to the embeddings loads nothing itself and keeps a packed copy of old ones."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def parameter_names(model: Any) -> set[str]:
    """Return the model's own names of its parameters, adapters' wrapping taken off. Any: vLLM's model."""
    return {plain(name) for name, _ in model.named_parameters() if ".lora_" not in name}


def plain(name: str) -> str:
    """Take the word off a name that vLLM's adapter layers put into it."""
    return name.replace(".base_layer.", ".")


def forget_derived(runner: Any) -> None:
    """Drop adapters' copies of the old weights; encoded images the scheduler must forget too. Any: vLLM's runner."""
    reset = getattr(runner, "reset_lora_state", None)
    if reset is not None:
        reset()


class _Counted:
    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._tensors = tensors
        self.num = 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for item in self._tensors:
            self.num += 1
            yield item
