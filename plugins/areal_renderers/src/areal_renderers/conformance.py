"""What the conformance suite needs to know of the renderers: tokenizers that they are proven on.

Knows: which those are, and options of `plain`. Those of families have published templates, and need the extra `test`.
Does not know: any check.
"""

from __future__ import annotations

from areal_agentic.renderer import Renderer
from areal_conformance.adapter import Adapter, Variant
from areal_renderers.config import TemplateConfig
from areal_renderers.template import TemplateRenderer

_FAMILY = "areal_renderers.testing.tokenizers:family_tokenizer"


def _written(renderer: Renderer) -> str:
    """Return a conversation of two questions, its answer as a policy gave it, as text."""
    from areal_conformance.probes.tokenizers import tiny_tokenizer

    tokenizer = tiny_tokenizer("bare")
    bound = renderer.bind(tokenizer)
    asked = [{"role": "user", "content": "ab"}]
    output = [*tokenizer.encode("ba"), tokenizer.eos_token_id]
    bridge = bound.bridge(asked, output, [{"role": "user", "content": "abba"}])
    return str(tokenizer.decode([*bound.render(asked), *output, *(bridge or ())]))


AUTO = Adapter(tokenizers=("chatml", "thinking"))
PLAIN = Adapter(
    tokenizers=("bare",),
    options={"": {"prefixes": {"user": "Q: ", "assistant": "A:"}, "separator": "\n"}},
    variants={
        "suffixes": Variant(
            options={"suffixes": {"user": "!", "assistant": "<|im_end|>\n"}},
            shows=_written,
            gives="Q: ab!\nA:ba<|im_end|>\n\nQ: abba!\nA:",
        ),
        "prefixes": Variant(
            options={"prefixes": {"assistant": "so "}, "separator": ""},
            shows=_written,
            gives="abso ba<|im_end|>abbaso ",
        ),
    },
    without_effect={
        "add_special_tokens": "the suite's tokenizer begins no text; tests of the package have one that does"
    },
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
