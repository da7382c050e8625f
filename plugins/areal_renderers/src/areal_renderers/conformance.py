"""What the conformance suite needs to know of the renderers: tokenizers that they are proven on.

Knows: which those are. Those of families have published templates, and need the extra `test`.
Does not know: any check.
"""

from __future__ import annotations

from areal_conformance.adapter import Adapter
from areal_renderers.config import TemplateConfig
from areal_renderers.plain import PlainConfig, PlainRenderer
from areal_renderers.template import TemplateRenderer

_FAMILY = "areal_renderers.testing.tokenizers:family_tokenizer"

AUTO = Adapter(tokenizers=("chatml", "thinking"))
PLAIN = Adapter(
    tokenizers=("bare",),
    build=lambda case: PlainRenderer(PlainConfig(prefixes={"user": "Q: ", "assistant": "A:"}, separator="\n")),
)
TEMPLATE = Adapter(
    tokenizers=("chatml", "thinking"),
    build=lambda case: TemplateRenderer(TemplateConfig(thoughts="think", calls="json")),
)
QWEN3 = Adapter(tokenizers=("thinking", f"{_FAMILY}:qwen3", f"{_FAMILY}:qwen3_training"))
QWEN2_5 = Adapter(tokenizers=("chatml", f"{_FAMILY}:qwen2_5", f"{_FAMILY}:qwen3_instruct_2507"))
CHATML = Adapter(tokenizers=(f"{_FAMILY}:smollm2",))
LLAMA3 = Adapter(tokenizers=(f"{_FAMILY}:llama3", f"{_FAMILY}:llama3_1", f"{_FAMILY}:llama3_2"))
DEEPSEEK = Adapter(tokenizers=(f"{_FAMILY}:deepseekv3", f"{_FAMILY}:deepseek_r1_distill"))
GLM4 = Adapter(tokenizers=(f"{_FAMILY}:glm4moe",))
HARMONY = Adapter(tokenizers=(f"{_FAMILY}:gptoss",))
