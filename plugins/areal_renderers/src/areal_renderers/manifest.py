"""What the entry points of `areal.renderer` name: plain data, nothing imported."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest


def _renderer(name: str, factory: str, config: str, summary: str) -> Manifest:
    return Manifest(
        role="renderer",
        name=name,
        contract=(1, 0),
        factory=f"areal_renderers.{factory}",
        config=f"areal_renderers.{config}",
        devices=("cpu", "cuda", "npu", "xpu", "mps"),
        summary=summary,
    )


AUTO = _renderer(
    "auto",
    "auto:AutoRenderer",
    "config:ChatOptions",
    "the family whose proof holds on the run's tokenizer, else `template`, else `plain`",
)
PLAIN = _renderer("plain", "plain:PlainRenderer", "plain:PlainConfig", "texts one after the other: base models")
TEMPLATE = _renderer("template", "template:TemplateRenderer", "config:TemplateConfig", "any model with a chat template")
