"""Options of a renderer change what they say: its checks again with each variant of the adapter.

Knows: which checks see that a conversation is written, gone on with and read as it should be.
Does not know: what an option means.
"""

from __future__ import annotations

from areal_conformance.benches.renderer import RendererBench
from areal_conformance.check import Level, check
from areal_conformance.varied import given, made_again, shown

_CHECKS = (
    "renderer.render.template",
    "renderer.render.asks",
    "renderer.bridge.law",
    "renderer.bridge.closes",
    "renderer.bridge.exact",
    "renderer.parse.content",
    "renderer.stop.ends",
)


@check("renderer.options.checks", level=Level.SINGLE, law=1, spec="renderer", deadline_s=120.0)
async def again(bench: RendererBench) -> None:
    """With each variant's options conversations are written, gone on with and read back."""
    await made_again(bench, _CHECKS)


@check("renderer.options.shown", level=Level.SINGLE, law=8, spec="renderer")
async def effect(bench: RendererBench) -> None:
    """Options with an effect that can be seen have it."""
    await shown(bench, lambda: given(bench.fresh()))
