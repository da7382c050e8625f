"""Every aten operator of torch_npu, computed by torch's own CPU kernel on the same bytes.

Knows: that the stand-in's device memory is host memory, so that a tensor there has an alias on the CPU.
Does not know: what an NPU would have computed; its rounding, its limits and its speed are not here.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_METADATA_ONLY = frozenset(
    {
        "aten::empty.memory_format",
        "aten::empty_strided",
        "aten::as_strided",
        "aten::view",
        "aten::_reshape_alias",
        "aten::set_.source_Storage",
        "aten::set_.source_Storage_storage_offset",
        "aten::set_.source_Tensor",
        "aten::set_",
        "aten::resize_",
        "aten::record_stream",
        "aten::is_pinned",
        "aten::_pin_memory",
        "aten::unfold",
        "aten::alias",
        "aten::_has_compatible_shallow_copy_type",
        "aten::is_set_to",
        "aten::new_empty_strided",
    }
)
"""Operators that move no number: torch_npu's own are used."""

Kernel = Callable[..., Any]  # Any: one signature for every operator


def install() -> object:
    """Replace the kernels in this process, for as long as what is returned lives."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # Any: so are its methods
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced is the point
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"):
            overload = _overload(name)
            if overload is not None and name not in _METADATA_ONLY and not overload.is_view:
                library.impl(name.removeprefix("aten::"), on_host(_kernel_of(name, overload)), "PrivateUse1")
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            library.impl("scaled_dot_product_attention", _attention, key)
    return library


def is_npu(value: object) -> bool:
    """Tell whether a value is a tensor on an NPU."""
    return isinstance(value, Tensor) and value.device.type == "npu"


def alias(tensor: Tensor) -> Tensor:
    """Return a CPU tensor over the same bytes, valid while `tensor` lives."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())


def on_host(kernel: Kernel) -> Kernel:
    """Return `kernel` for NPU tensors: called with their aliases, its new results copied back to the device."""

    def run(*args: Any, **options: Any) -> Any:
        aliases: dict[int, tuple[Tensor, Tensor]] = {}
        devices: list[torch.device] = []
        on_cpu = [value for value in args if isinstance(value, Tensor) and not is_npu(value)]
        wanted = options.get("device")

        def lower(value: Any) -> Any:
            if is_npu(value):
                devices.append(value.device)
                other = alias(value)
                aliases[id(other)] = (other, value)
                return other
            if isinstance(value, torch.device) and value.type == "npu":
                devices.append(value if value.index is not None else _current())
                return torch.device("cpu")
            return value

        lowered = tree_map(lower, options)
        if lowered.get("pin_memory"):
            lowered["pin_memory"] = False
        if "device" in lowered and lowered["device"] is None:
            lowered["device"] = torch.device("cpu")
        result = kernel(*tree_map(lower, args), **lowered)
        device = devices[0] if devices else _current()
        stays = wanted is not None and torch.device(wanted).type == "cpu"

        def lift(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.device.type != "cpu":
                return value
            if id(value) in aliases:
                return aliases[id(value)][1]
            if stays or any(value is held for held in on_cpu):
                return value
            lifted = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
            alias(lifted).copy_(value)
            return lifted

        return tree_map(lift, result)

    return run


def _overload(name: str) -> Any:  # Any: an OpOverload
    if not name.startswith("aten::"):
        return None
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _kernel_of(name: str, overload: Kernel) -> Kernel:
    return _BY_HAND.get(name, overload)


def _current() -> torch.device:
    npu: Any = torch.npu  # type: ignore[attr-defined]  # torch_npu adds it
    return torch.device("npu", npu.current_device())


def _copy(source: Tensor, target: Tensor, *_: Any, **__: Any) -> Tensor:
    return target.copy_(source)


def _matmul_backward(grad: Tensor, left: Tensor, right: Tensor, mask: list[bool]) -> tuple[Tensor | None, ...]:
    """The derivative that torch_npu has an operator for and the CPU has not."""
    wide = left[None] if left.dim() == 1 else left
    tall = right[:, None] if right.dim() == 1 else right
    whole = grad.unsqueeze(-2) if left.dim() == 1 else grad
    whole = whole.unsqueeze(-1) if right.dim() == 1 else whole
    of_left = (whole @ tall.mT).sum_to_size(wide.shape).reshape(left.shape)
    of_right = (wide.mT @ whole).sum_to_size(tall.shape).reshape(right.shape)
    return (of_left if mask[0] else None, of_right if mask[1] else None)


def _linear_backward(data: Tensor, grad: Tensor, weight: Tensor, _mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ weight, rows.mT @ data.reshape(-1, data.shape[-1]), rows.sum(0)


def _histogram(data: Tensor, bins: int = 100, least: float = 0, most: float = 0) -> Tensor:
    """Count whole numbers too, as an NPU is documented to; the CPU counts floating-point numbers only."""
    return torch.histc(data.double(), bins, least, most).to(data.dtype)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention from matrix products, each of which has a kernel and a derivative here."""
    math = torch.ops.aten._scaled_dot_product_attention_math
    out: Tensor = math(query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]
    return out


_BY_HAND: dict[str, Kernel] = {
    "aten::_copy_from": _copy,
    "aten::_copy_from_and_resize": _copy,
    "aten::histc": _histogram,
    "aten::matmul_backward": _matmul_backward,
    "aten::linear_backward": _linear_backward,
}
