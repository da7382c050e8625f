"""What the conformance suite needs to know of the renderers: tokenizers that they are proven on.

Knows: which those are, and options. Those of families have published templates, and need the extra `test`.
Does not know: any check.
"""

from __future__ import annotations

from collections.abc import Callable

from areal_agentic.renderer import Renderer
from areal_conformance.adapter import Adapter, Variant

_FAMILY = "areal_renderers.testing.tokenizers:family_tokenizer"


def _written(renderer: Renderer) -> tuple[str, int]:
    """Return two questions, with the first one's answer as a policy gave it: as text, and how many ends it has."""
    from areal_conformance.probes.tokenizers import tiny_tokenizer

    tokenizer = tiny_tokenizer("bare")
    bound = renderer.bind(tokenizer)
    asked = [{"role": "user", "content": "ab"}]
    output = [*tokenizer.encode("ba"), tokenizer.eos_token_id]
    bridge = bound.bridge(asked, output, [{"role": "user", "content": "abba"}])
    whole = [*bound.render(asked), *output, *(bridge or ())]
    return str(tokenizer.decode(whole)), whole.count(tokenizer.eos_token_id)


def _spoken(renderer: Renderer) -> str:
    """Return what stands before a question, by a template that has a variable and a switch."""
    from areal_conformance.probes.tokenizers import CHATML

    return _before(renderer, CHATML)


def _spoken_thinking(renderer: Renderer) -> str:
    """Return the same by a template of a model that thinks."""
    from areal_conformance.probes.tokenizers import THINKING

    return _before(renderer, THINKING)


def _before(renderer: Renderer, template: str) -> str:
    from areal_conformance.probes.tokenizers import with_template

    tokenizer = with_template(_SPEAKING + template)
    whole = str(tokenizer.decode(renderer.bind(tokenizer).render([{"role": "user", "content": "stone"}])))
    return whole.partition("<|im_start|>")[0]


def _read(renderer: Renderer) -> tuple[str, str, list[str]]:
    """Return content, thoughts and names of the calls of an output that has all three."""
    from areal_conformance.probes.tokenizers import tiny_tokenizer

    tokenizer = tiny_tokenizer("thinking")
    made = renderer.bind(tokenizer).parse([*tokenizer.encode(f"{_THOUGHTS}ba{_CALL}"), tokenizer.eos_token_id])
    return made.content, made.thoughts, [call.name for call in made.calls]


_THOUGHTS, _CALL = "<think>\nab\n</think>\n\n", '\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
_SPEAKING = "{{- tone }}{%- if enable_thinking is defined %}{{- 'think' if enable_thinking else 'hush' }}{%- endif %}"


def _of_templates(shows: Callable[[Renderer], str]) -> dict[str, Variant]:
    return {
        "template": Variant(options={"template": {"tone": "low"}}, shows=shows, gives="low"),
        "enable_thinking": Variant(
            options={"enable_thinking": False},
            shows=shows,
            gives="hush",
            again=False,  # the suite's own templates have no such switch
        ),
    }


_OF_TEMPLATES = _of_templates(_spoken)
AUTO = Adapter(tokenizers=("chatml", "thinking", "opening"), variants=_OF_TEMPLATES)
PLAIN = Adapter(
    tokenizers=("bare",),
    options={"": {"prefixes": {"user": "Q: ", "assistant": "A:"}, "separator": "\n"}},
    variants={
        "suffixes": Variant(
            options={"suffixes": {"user": "!<|im_end|>", "assistant": "<|im_end|>\n"}},
            shows=_written,
            gives=("Q: ab!<|im_end|>\nA:ba<|im_end|>\n\nQ: abba!<|im_end|>\nA:", 3),
        ),
        "prefixes": Variant(
            options={"prefixes": {"assistant": "so "}, "separator": ""},
            shows=_written,
            gives=("abso ba<|im_end|>abbaso ", 1),
        ),
    },
    without_effect={
        "add_special_tokens": "the suite's tokenizer begins no text; tests of the package have one that does"
    },
)
TEMPLATE = Adapter(
    tokenizers=("chatml", "thinking"),
    options={"": {"thoughts": "think", "calls": "json"}},
    variants={
        **_OF_TEMPLATES,
        "thoughts": Variant(
            options={"thoughts": "none"}, shows=_read, gives=(f"{_THOUGHTS}ba", "", ["add"]), again=False
        ),
        "calls": Variant(options={"calls": "none"}, shows=_read, gives=(f"ba{_CALL}", "ab", []), again=False),
    },
)
QWEN3 = Adapter(
    tokenizers=("thinking", "opening", "flagged", f"{_FAMILY}:qwen3", f"{_FAMILY}:qwen3_training"),
    variants=_of_templates(_spoken_thinking),
)
QWEN2_5 = Adapter(tokenizers=("chatml", f"{_FAMILY}:qwen2_5", f"{_FAMILY}:qwen3_instruct_2507"), variants=_OF_TEMPLATES)
CHATML = Adapter(tokenizers=(f"{_FAMILY}:smollm2",))
LLAMA3 = Adapter(tokenizers=(f"{_FAMILY}:llama3", f"{_FAMILY}:llama3_1", f"{_FAMILY}:llama3_2"))
DEEPSEEK = Adapter(tokenizers=(f"{_FAMILY}:deepseekv3", f"{_FAMILY}:deepseek_r1_distill"))
GLM4 = Adapter(tokenizers=(f"{_FAMILY}:glm4moe",))
HARMONY = Adapter(tokenizers=(f"{_FAMILY}:gptoss",))
