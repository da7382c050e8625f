"""A stand-in for SGLang's compiled kernels on a CPU, for which none are published.

Lets the SGLang server start. One kernel is written in torch; each other name exists, so that it
can be imported, and raises when it is called: nothing is computed wrongly.
Laid into an engine's environment for `cpu` by `areal env create`, never for another device.

Knows: which kernel a server without AMX instructions calls.
Does not know: SGLang.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

__version__ = "0.0.0+areal.cpu"

_PINNING = ("tensor", "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "arange")
"""Functions of torch that take `pin_memory`, which needs an accelerator."""
_LOOKED_UP = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)
"""Operators of other models that SGLang's processor of Qwen's images looks up when it is imported.

Each is named and has no implementation: calling one raises.
"""


def copy_all_layer_kv_cache_cpu(
    k_buffers: Sequence[torch.Tensor], v_buffers: Sequence[torch.Tensor], target: torch.Tensor, source: torch.Tensor
) -> None:
    """Copy rows `source` of every layer's keys and values to rows `target`; the two may overlap."""
    for buffer in (*k_buffers, *v_buffers):
        buffer[target] = buffer[source].clone()


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a kernel that raises when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments: object, **_options: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name} has no CPU implementation here; serve on cuda, or without it")

    missing.__name__ = name
    return missing


def _without_pinning(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: torch's own signatures
    @functools.wraps(function)
    def unpinned(*arguments: Any, pin_memory: bool = False, **options: Any) -> Any:
        return function(*arguments, **options)

    return unpinned


def _as_it_is(tensor: torch.Tensor, *_arguments: object, **_options: object) -> torch.Tensor:
    return tensor


def _drop_pinning() -> None:
    """Let `pin_memory` mean nothing: SGLang's LoRA code sets it also where there is no accelerator."""
    if torch.accelerator.is_available():
        return
    for name in _PINNING:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = _as_it_is  # type: ignore[method-assign, assignment]


def _name_operators() -> torch.library.Library:
    library = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch has no types here
    for name in _LOOKED_UP:
        library.define(f"{name}(Tensor input) -> Tensor")  # type: ignore[no-untyped-call]
    return library


_drop_pinning()
_operators = _name_operators()  # the names go when the library object does
