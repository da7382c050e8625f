"""Tokenizers of each family: byte-level ones of a few hundred tokens with the family's own control tokens and template.

The templates are those that models are published with, as trl ships them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_WORDS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
)
_DEEPSEEK = tuple(
    f"<｜{name}｜>"
    for name in (
        "begin▁of▁sentence",
        "end▁of▁sentence",
        "User",
        "Assistant",
        "tool▁calls▁begin",
        "tool▁calls▁end",
        "tool▁call▁begin",
        "tool▁call▁end",
        "tool▁sep",
        "tool▁outputs▁begin",
        "tool▁outputs▁end",
        "tool▁output▁begin",
        "tool▁output▁end",
    )
)
_GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "/nothink")
_GLM_WORDS = (*_QWEN_WORDS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_HARMONY = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
)

_WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""How tokenizers of these models cut text, since Llama 3."""

_SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2's, as it stands in the file of the model that `areal_tasks.smollm2` reads."""

TEMPLATES: dict[str, str] = {
    "qwen2_5": "qwen2.5",
    "qwen3": "qwen3",
    "qwen3_training": "qwen3",
    "qwen3_instruct_2507": "qwen2.5",
    "smollm2": "chatml",
    "llama3": "llama3",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "deepseekv3": "deepseek",
    "deepseek_r1_distill": "deepseek",
    "glm4moe": "glm4",
    "gptoss": "harmony",
}
"""Published template -> the family whose it is."""

# template -> (special tokens, other added tokens, beginning, end)
_VOCABULARIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None, str]] = {
    "qwen2_5": (_CHATML, _QWEN_WORDS[:4], None, "<|im_end|>"),
    "qwen3": (_CHATML, _QWEN_WORDS, None, "<|im_end|>"),
    "qwen3_training": (_CHATML, _QWEN_WORDS, None, "<|im_end|>"),
    "qwen3_instruct_2507": (_CHATML, _QWEN_WORDS, None, "<|im_end|>"),
    "smollm2": (_CHATML, (), "<|im_start|>", "<|im_end|>"),
    "llama3": (_LLAMA, (), "<|begin_of_text|>", "<|eot_id|>"),
    "llama3_1": (_LLAMA, (), "<|begin_of_text|>", "<|eot_id|>"),
    "llama3_2": (_LLAMA, (), "<|begin_of_text|>", "<|eot_id|>"),
    "deepseekv3": (_DEEPSEEK[:2], (*_DEEPSEEK[2:], "<think>", "</think>"), _DEEPSEEK[0], _DEEPSEEK[1]),
    "deepseek_r1_distill": (_DEEPSEEK[:2], (*_DEEPSEEK[2:], "<think>", "</think>"), _DEEPSEEK[0], _DEEPSEEK[1]),
    "glm4moe": (_GLM, _GLM_WORDS, None, "<|endoftext|>"),
    "gptoss": (_HARMONY, (), None, "<|return|>"),
}


def published(template: str) -> str:
    """Return a chat template as its model is published with it."""
    if template == "smollm2":
        return _SMOLLM2
    return (files("trl") / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")


@cache
def family_tokenizer(template: str) -> Any:
    """Return a tokenizer with the control tokens of a family and a published template of it."""
    specials, words, begin, end = _VOCABULARIES[template]
    return tokenizer(published(template), specials, words, begin, end)


def tokenizer(
    template: str | None, specials: tuple[str, ...], words: tuple[str, ...], begin: str | None, end: str
) -> Any:
    """Return a byte-level tokenizer trained on a few words; words are added tokens that are not special."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    text = 'the user asks what the assistant answers: Hello, how are you? {"name": "look_up"} \n\n two lines'
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([text] * 20, trainer)
    made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in specials])
    made.add_tokens([AddedToken(each, special=False, normalized=False) for each in words])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=begin, eos_token=end, clean_up_tokenization_spaces=False
    )
    fast.chat_template = template
    return fast
