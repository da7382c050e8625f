"""The families: how each writes thoughts and calls, and how its models are recognised.

Knows: a row for each family.
Does not know: how a conversation becomes tokens (`bound`): every family uses the model's own chat template for that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from attrs import frozen

from areal_core.contract.errors import DatasetError
from areal_renderers.bound import BoundTemplate, Style
from areal_renderers.config import ChatOptions
from areal_renderers.harmony import channels, end_of
from areal_renderers.proof import prove
from areal_renderers.reading import (
    CLOSE,
    bare_json_calls,
    deepseek_calls,
    json_calls,
    no_calls,
    no_thoughts,
    think,
    xml_calls,
)


@frozen(kw_only=True)
class Family:
    """One family: its style, tokens that its tokenizers have, texts that its chat templates hold or do not hold.

    Example: Family(style=Style(name="chatml", ...), tokens=("<|im_start|>",), without=("tools",))
    """

    style: Style
    models: str
    tokens: tuple[str, ...]
    holding: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def recognises(self, tokenizer: Any) -> bool:  # Any: a Hugging Face tokenizer
        """Tell whether a tokenizer and its template look like this family's; only a proof tells whether they are."""
        known = {str(token) for token in tokenizer.added_tokens_decoder.values()}
        source = str(tokenizer.chat_template or "")
        return (
            known.issuperset(self.tokens)
            and all(text in source for text in self.holding)
            and not any(text in source for text in self.without)
        )


_CHATML = ("<|im_start|>", "<|im_end|>")
_QWEN_STOPS = ("<|endoftext|>",)
FAMILIES: tuple[Family, ...] = (
    Family(
        style=Style(name="qwen3", thoughts=think, calls=json_calls, stops=_QWEN_STOPS),
        models="Qwen 3, with and without thinking",
        tokens=_CHATML,
        holding=("<tool_call>", '"arguments": ', "</think>"),
    ),
    Family(
        style=Style(name="qwen2.5", thoughts=no_thoughts, calls=json_calls, stops=_QWEN_STOPS),
        models="Qwen 2.5, Qwen 3 Instruct of July 2025",
        tokens=_CHATML,
        holding=("<tool_call>", '"arguments": '),
        without=("</think>",),
    ),
    Family(
        style=Style(name="chatml", thoughts=no_thoughts, calls=no_calls),
        models="SmolLM2, and other models of ChatML that know no tools",
        tokens=_CHATML,
        without=("<tool_call>", "</think>", "tools"),
    ),
    Family(
        style=Style(name="llama3", thoughts=no_thoughts, calls=bare_json_calls, stops=("<|eom_id|>",)),
        models="Llama 3, 3.1, 3.2, 3.3",
        tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        without=("</think>",),
    ),
    Family(
        style=Style(name="deepseek", thoughts=think, calls=deepseek_calls),
        models="DeepSeek V3, R1 and their distillations",
        tokens=("<｜User｜>", "<｜Assistant｜>"),
    ),
    Family(
        style=Style(name="glm4", thoughts=think, calls=xml_calls, stops=("<|user|>", "<|observation|>"), closing=CLOSE),
        models="GLM 4.5",
        tokens=("<|user|>", "<|assistant|>", "<|observation|>"),
        holding=("<arg_key>",),
    ),
    Family(
        style=Style(
            name="harmony",
            thoughts=channels,
            calls=no_calls,
            stops=("<|return|>", "<|call|>"),
            end_of=end_of,
            closing="<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
        models="gpt-oss",
        tokens=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
    ),
)


class FamilyRenderer:
    """Role `renderer`, contract 1.0: one family, proven on the run's own tokenizer."""

    def __init__(self, family: Family, config: ChatOptions | None = None) -> None:
        """Hold the options."""
        self.family, self._config = family, config or ChatOptions()

    def bind(self, tokenizer: Any) -> BoundTemplate:  # Any: a Hugging Face tokenizer
        """Return the renderer of a tokenizer, proven on it.

        Raises:
            DatasetError: the tokenizer is not of this family, or its template writes a conversation otherwise.
        """
        if not self.family.recognises(tokenizer):
            raise DatasetError(
                f"the tokenizer is not of the family {self.family.style.name!r}",
                why=f"that is {self.family.models}, with the tokens {', '.join(self.family.tokens)}",
                fix="take the renderer `auto`",
            )
        bound = BoundTemplate(tokenizer, self.family.style, self._config)
        style = self.family.style
        thinks = style.thoughts is not no_thoughts
        prove(bound, reads_thoughts=thinks, reads_calls=style.calls is not no_calls or style.end_of is not None)
        return bound


qwen3, qwen2_5, chatml, llama3, deepseek, glm4, harmony = (partial(FamilyRenderer, family) for family in FAMILIES)
