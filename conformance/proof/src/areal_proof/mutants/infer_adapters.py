"""Engines that serve adapters wrongly.

Knows: how the second inference engine loads, names and applies them.
Does not know: how it is caught.
"""

from __future__ import annotations

from pathlib import Path

import attrs
from torch import Tensor

from areal_core.contract.errors import ArealError
from areal_core.contract.inference import GenerationRequest
from areal_proof.mutants import mutant
from areal_proof.second.infer.adapters import Adapter
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.forward import Delta
from areal_proof.second.infer.requests import Seat


class _Rewrites(SecondInferenceEngine):
    """Changes what was loaded; base of the mutants below."""

    def rewritten(self, name: str, delta: Delta) -> Delta | None:
        """Return what to apply to a layer in place of `delta`."""
        raise AssertionError(name, delta)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        await super().load_adapter(name, path, version)
        loaded = self._adapters[name]
        changed = {layer: self.rewritten(layer, delta) for layer, delta in loaded.deltas.items()}
        kept = {layer: delta for layer, delta in changed.items() if delta is not None}
        self._adapters[name] = attrs.evolve(loaded, deltas=kept)


@mutant("infer/second", killers=("infer.adapters.applied",), incident="verl#7495", row="served-policy-changes")
class LoadsAndNeverSelects(SecondInferenceEngine):
    """Loads an adapter, stamps its version, and computes with the base weights."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        named, seat.adapter = seat.adapter, None
        try:
            return super()._next_logits(seat)
        finally:
            seat.adapter = named


@mutant("infer/second", killers=("infer.adapters.applied",))
class ScaleWithoutRank(_Rewrites):
    """Scales an adapter by alpha instead of alpha / r."""

    def rewritten(self, name: str, delta: Delta) -> Delta:
        return attrs.evolve(delta, scale=delta.scale * delta.down.shape[0])


@mutant("infer/second", killers=("infer.adapters.applied",))
class ScaleOfOne(_Rewrites):
    """Takes the scale of an adapter to be 1."""

    def rewritten(self, name: str, delta: Delta) -> Delta:
        return attrs.evolve(delta, scale=1.0)


@mutant("infer/second", killers=("infer.adapters.applied",), incident="UniRL#166", row="one-destination")
class AttentionLayersOnly(_Rewrites):
    """Applies an adapter to attention layers and drops the rest without a word."""

    def rewritten(self, name: str, delta: Delta) -> Delta | None:
        return delta if "self_attn" in name else None


@mutant("infer/second", killers=("infer.adapters.applied",))
class StampsTheBase(SecondInferenceEngine):
    """Stamps tokens of an adapter with the version of the base weights."""

    def _stamp(self, seat: Seat) -> int:
        return self._version


@mutant("infer/second", killers=("infer.adapters.base",))
class LastAdapterIsTheBase(SecondInferenceEngine):
    """Computes requests without an adapter with the one loaded last."""

    def _seat(self, request: GenerationRequest) -> Seat:
        seat = super()._seat(request)
        if not request.adapter and self._adapters:
            seat.adapter = list(self._adapters.values())[-1]
        return seat


@mutant("infer/second", killers=("infer.adapters.apart",))
class OneAdapterABatch(SecondInferenceEngine):
    """Computes whatever runs together with the adapter of the first of them."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        own = seat.adapter
        seat.adapter = min(self._running, key=lambda other: other.arrived_s).adapter
        try:
            return super()._next_logits(seat)
        finally:
            seat.adapter = own


@mutant("infer/second", killers=("infer.adapters.apart", "infer.adapters.base"))
class PrefixOfAnyAdapter(SecondInferenceEngine):
    """Shares kept prompts between adapters and the base."""

    def _prefix_key(self, seat: Seat) -> tuple[object, ...]:
        return (self._version, *seat.request.input_ids)


@mutant("infer/second", killers=("infer.adapters.replaced",), incident="vLLM#48306", row="version-spans")
class NewVersionOldContent(SecondInferenceEngine):
    """Takes the version of a newer adapter and keeps the content of the older one."""

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        old = self._adapters.get(name)
        await super().load_adapter(name, path, version)
        if old is not None:
            self._adapters[name] = attrs.evolve(old, version=version)


@mutant("infer/second", killers=("infer.adapters.replaced",))
class TakesOlderVersions(SecondInferenceEngine):
    """Lets an older version of an adapter replace a newer one."""

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        self._adapters.pop(name, None)
        await super().load_adapter(name, path, version)


@mutant("infer/second", killers=("infer.adapters.unloaded",))
class UnknownNameIsTheBase(SecondInferenceEngine):
    """Serves the base weights to a request whose adapter is not loaded."""

    def _adapter(self, name: str) -> Adapter | None:
        return self._adapters.get(name)


@mutant("infer/second", killers=("infer.adapters.unloaded",))
class UnloadsOnlyOnce(SecondInferenceEngine):
    """Raises when a name is unloaded that is not loaded."""

    async def unload_adapter(self, name: str) -> None:
        del self._adapters[name]


@mutant("infer/second", killers=("infer.adapters.unloaded",))
class UnloadsEverything(SecondInferenceEngine):
    """Unloads every adapter when one is unloaded."""

    async def unload_adapter(self, name: str) -> None:
        self._adapters.clear()


@mutant("infer/second", killers=("infer.adapters.unfit",))
class LoadsWhatFits(SecondInferenceEngine):
    """Takes a folder that does not fit for an adapter that adds nothing."""

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        try:
            await super().load_adapter(name, path, version)
        except ArealError:
            self._adapters[name] = Adapter(version=version, deltas={})


@mutant("infer/second", killers=("infer.adapters.unfit",))
class FailedLoadUnloads(SecondInferenceEngine):
    """Drops the version that is loaded before it looks at the next one."""

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        old = self._adapters.pop(name, None)
        if old is not None and version <= old.version:
            self._adapters[name] = old
        await super().load_adapter(name, path, version)


@mutant("infer/second", killers=("infer.adapters.in_flight",), incident="vLLM#54443", row="version-spans")
class SwapsUnderRunningRequests(SecondInferenceEngine):
    """Computes running requests with the newest version of their adapter and stamps the one they came with."""

    def _next_logits(self, seat: Seat) -> tuple[Tensor, Tensor | None]:
        own = seat.adapter
        seat.adapter = self._adapters.get(seat.request.adapter, own)
        try:
            return super()._next_logits(seat)
        finally:
            seat.adapter = own
