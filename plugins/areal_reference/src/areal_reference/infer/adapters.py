"""Adapters that requests name: read from PEFT's folders, and added to the layers of a forward of their own.

Knows: A, B and the scale of each layer; that they are over the base weights, not over an adapter that the policy is.
Does not know: which rows of a step are computed with which adapter (`loop`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear

from areal_core.contract.errors import CapabilityError, VersionRegressed
from areal_serving.adapter_folder import PREFIX, check_adapter, read_scale
from areal_torch.lora import ADAPTER_FILE, LoraLinear


@frozen(kw_only=True, eq=False)
class NamedAdapter:
    """One version of one adapter: A and B by the name of their layer."""

    name: str
    version: int
    scale: float
    layers: dict[str, tuple[Tensor, Tensor]] = field(repr=False)


class NamedAdapters:
    """Those of one model. Requests hold the version they began with."""

    def __init__(self, model: Any) -> None:  # Any: transformers is untyped
        self._linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self._current: dict[str, NamedAdapter] = {}
        self._applied: NamedAdapter | None = None
        self._attached = False

    def read(self, name: str, path: Path, version: int) -> NamedAdapter:
        """Return an adapter on the model's device, in its dtype.

        Raises:
            ModelError: the folder holds no adapter of this model.
            VersionRegressed: this version, or a newer one, is loaded.
        """
        self._expect_newer(name, version)
        check_adapter(path, {f"{name}.weight": tuple(linear.weight.shape) for name, linear in self._linears.items()})
        scale, found = read_scale(path), load_file(path / ADAPTER_FILE)
        layers: dict[str, tuple[Tensor, Tensor]] = {}
        for layer, module in self._linears.items():
            if (first := found.get(f"{PREFIX}{layer}.lora_A.weight")) is not None:
                second = found[f"{PREFIX}{layer}.lora_B.weight"]
                layers[layer] = (first.to(module.weight), second.to(module.weight))
        return NamedAdapter(name=name, version=version, scale=scale, layers=layers)

    def serve(self, adapter: NamedAdapter) -> None:
        """Let later requests for its name have it. Between two steps.

        Raises:
            VersionRegressed: a newer one was loaded while this one was read.
        """
        self._expect_newer(adapter.name, adapter.version)
        if not self._attached:
            for name, module in self._linears.items():
                module.register_forward_hook(self._hook(name))
            self._attached = True
        self._current[adapter.name] = adapter

    def _expect_newer(self, name: str, version: int) -> None:
        known = self._current.get(name)
        if known is not None and version <= known.version:
            raise VersionRegressed(
                f"version {version} of adapter {name!r} was offered", why=f"version {known.version} serves already"
            )

    def forget(self, name: str) -> None:
        """Let no later request have the name. Idempotent."""
        self._current.pop(name, None)

    def find(self, name: str) -> NamedAdapter | None:
        """Return what a request that names it gets; None for the policy, which has no name.

        Raises:
            CapabilityError: nothing of that name is loaded.
        """
        if name and name not in self._current:
            raise CapabilityError(
                f"adapter {name!r} is not loaded",
                why=f"loaded are {', '.join(sorted(self._current)) or 'none'}",
                fix="name it and its folder under rollout.adapters",
            )
        return self._current[name] if name else None

    @contextmanager
    def applied(self, adapter: NamedAdapter | None) -> Iterator[None]:
        """Compute what runs inside with this adapter, or with the policy. In the compute thread."""
        self._applied = adapter
        try:
            yield
        finally:
            self._applied = None

    def _hook(self, name: str) -> Any:  # Any: as torch calls it
        def add(module: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            adapter = self._applied
            if adapter is None:
                return None
            (given,) = inputs
            if isinstance(module, LoraLinear):
                output = nn.Linear.forward(module, given)  # without the policy's own adapter
            if name not in adapter.layers:
                return output
            first, second = adapter.layers[name]
            return output + adapter.scale * linear(linear(given, first), second)

        return add
