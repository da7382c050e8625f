"""What the entry points of `areal.renderer` name: plain data, nothing imported."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest


def _renderer(name: str, factory: str, config: str, summary: str) -> Manifest:
    adapter = f"areal_renderers.conformance:{name.upper().replace('.', '_')}"
    return Manifest(
        role="renderer",
        name=name,
        contract=(1, 0),
        factory=f"areal_renderers.{factory}",
        config=f"areal_renderers.{config}",
        devices=("cpu", "cuda", "npu", "xpu", "mps"),
        conformance=adapter,
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


def _family(name: str, attribute: str, models: str) -> Manifest:
    return _renderer(name, f"families:{attribute}", "config:ChatOptions", models)


QWEN3 = _family("qwen3", "qwen3", "Qwen 3, with and without thinking")
QWEN2_5 = _family("qwen2.5", "qwen2_5", "Qwen 2.5, and Qwen 3 models that never think")
CHATML = _family("chatml", "chatml", "SmolLM2, and other models of ChatML that know no tools")
LLAMA3 = _family("llama3", "llama3", "Llama 3 to 3.3")
DEEPSEEK = _family("deepseek", "deepseek", "DeepSeek V3, R1 and what was distilled from it")
GLM4 = _family("glm4", "glm4", "GLM 4.5")
HARMONY = _family("harmony", "harmony", "gpt-oss")
