"""Engines that serve adapters wrongly.

Knows: how the second inference engine loads, names and applies them.
Does not know: how it is caught.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from areal_core.contract.errors import ArealError
from areal_proof.mutants.rows import Original, before, breaking, row, then
from areal_proof.second.infer.adapters import Adapter
from areal_proof.second.infer.engine import SecondInferenceEngine
from areal_proof.second.infer.forward import Delta
from areal_proof.second.infer.requests import Seat

breaks = breaking("infer/second", SecondInferenceEngine)


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


@breaks("_next_logits", "infer.adapters.applied", incident="verl#7495", row="served-policy-changes")
def LoadsAndNeverSelects(original: Original, seat: Seat) -> Any:
    """Loads an adapter, stamps its version, and computes with the base weights."""
    named, seat.adapter = seat.adapter, None
    try:
        return original()
    finally:
        seat.adapter = named


@breaks("_next_logits", "infer.adapters.apart")
def OneAdapterABatch(original: Original, self: SecondInferenceEngine, seat: Seat) -> Any:
    """Computes whatever runs together with the adapter of the first of them."""
    own = seat.adapter
    seat.adapter = min(self._running, key=lambda other: other.arrived_s).adapter
    try:
        return original()
    finally:
        seat.adapter = own


@breaks("load_adapter", "infer.adapters.replaced", incident="vLLM#48306", row="version-spans")
async def NewVersionOldContent(original: Original, self: SecondInferenceEngine, name: str, version: int) -> None:
    """Takes the version of a newer adapter and keeps the content of the older one."""
    old = self._adapters.get(name)
    await original()
    if old is not None:
        self._adapters[name] = attrs.evolve(old, version=version)


@breaks("unload_adapter", "infer.adapters.unloaded")
def UnloadsOnlyOnce(self: SecondInferenceEngine, name: str) -> None:
    """Raises when a name is unloaded that is not loaded."""
    del self._adapters[name]


ROWS = breaks.rows(
    row("ScaleWithoutRank", "Scales an adapter by alpha instead of alpha / r.", "infer.adapters.applied",
        base=_Rewrites, rewritten=lambda delta: attrs.evolve(delta, scale=delta.scale * delta.down.shape[0])),
    row("ScaleOfOne", "Takes the scale of an adapter to be 1.", "infer.adapters.applied", base=_Rewrites,
        rewritten=lambda delta: attrs.evolve(delta, scale=1.0)),
    row("AttentionLayersOnly", "Applies an adapter to attention layers and drops the rest without a word.",
        "infer.adapters.applied", incident="UniRL#166", row="one-destination", base=_Rewrites,
        rewritten=lambda name, delta: delta if "self_attn" in name else None),
    row("StampsTheBase", "Stamps tokens of an adapter with the version of the base weights.", "infer.adapters.applied",
        _stamp=lambda self: self._version),
    row("LastAdapterIsTheBase", "Computes requests without an adapter with the one loaded last.",
        "infer.adapters.base",
        _seat=then(lambda result, self, request: setattr(result, "adapter", list(self._adapters.values())[-1])
            if not request.adapter and self._adapters else None)),
    row("PrefixOfAnyAdapter", "Shares kept prompts between adapters and the base.", "infer.adapters.apart",
        "infer.adapters.base", _prefix_key=lambda self, seat: (self._version, *seat.request.input_ids)),
    row("TakesOlderVersions", "Lets an older version of an adapter replace a newer one.", "infer.adapters.replaced",
        load_adapter=before(lambda self, name: self._adapters.pop(name, None))),
    row("UnknownNameIsTheBase", "Serves the base weights to a request whose adapter is not loaded.",
        "infer.adapters.unloaded", _adapter=lambda self, name: self._adapters.get(name)),
    row("UnloadsEverything", "Unloads every adapter when one is unloaded.", "infer.adapters.unloaded",
        unload_adapter=lambda self: self._adapters.clear()),
)  # fmt: skip


@breaks("load_adapter", "infer.adapters.unfit")
async def LoadsWhatFits(original: Original, self: SecondInferenceEngine, name: str, version: int) -> None:
    """Takes a folder that does not fit for an adapter that adds nothing."""
    try:
        await original()
    except ArealError:
        self._adapters[name] = Adapter(version=version, deltas={})


@breaks("load_adapter", "infer.adapters.unfit")
async def FailedLoadUnloads(original: Original, self: SecondInferenceEngine, name: str, version: int) -> None:
    """Drops the version that is loaded before it looks at the next one."""
    old = self._adapters.pop(name, None)
    if old is not None and version <= old.version:
        self._adapters[name] = old
    await original()


@breaks("_next_logits", "infer.adapters.in_flight", incident="vLLM#54443", row="version-spans")
def SwapsUnderRunningRequests(original: Original, self: SecondInferenceEngine, seat: Seat) -> Any:
    """Computes running requests with the newest version of their adapter and stamps the one they came with."""
    own = seat.adapter
    seat.adapter = self._adapters.get(seat.request.adapter, own)
    try:
        return original()
    finally:
        seat.adapter = own
