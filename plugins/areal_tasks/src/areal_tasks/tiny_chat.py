"""A chat model before it has learnt anything: 110k parameters, ChatML, tools as Qwen 2.5 and Hermes write them.

Its tokenizer has a token for each printable character, for control tokens and for the longer strings of its own chat
template, so that a conversation with a tool is some 90 tokens long.

Knows: the template, the vocabulary, and how to write both as an ordinary Hugging Face folder.
Does not know: how it is trained, or on what.
"""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

from areal_tasks.tiny import make_qwen3

MAX_POSITION = 512
PAD, END, START = "<pad>", "<|im_end|>", "<|im_start|>"
WORDS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
"""Tokens of their own, though not special ones: as with Qwen, whoever decodes an answer sees them."""
_SYSTEM = "You are a helpful assistant."
_BEFORE_TOOLS = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_BEHIND_TOOLS = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call><|im_end|>\n"
)
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "additionalProperties": False,
            "properties": {
                "expression": {"type": "string", "description": "numbers, + - * / // % ** and parentheses."}
            },
            "required": ["expression"],
            "type": "object",
        },
    },
}
"""The tool `calculator` of `areal-agents`, as models are shown it."""
_PIECES = (
    "assistant\n",
    "user\n",
    "system\n",
    '{"name": "',
    "calculator",
    '", "arguments": {"',
    "expression",
    '": "',
    '"}}\n',
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"additionalProperties": false, "properties": {"',
    '": {"type": "string"',
    ', "description": "',
    '"}}, "required": ["',
    '"], "type": "object"}}}\n',
    "Evaluate an arithmetic expression.",
    "numbers, + - * / // % ** and parentheses.",
)
"""Strings of tools and of calls."""
CHAT_TEMPLATE = (
    """\
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- else %}{%- set system = SYSTEM %}\
{%- endif %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
    {{- BEFORE_TOOLS }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- BEHIND_TOOLS }}
{%- else %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content or not message.tool_calls %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""".replace("BEFORE_TOOLS", repr(_BEFORE_TOOLS))
    .replace("BEHIND_TOOLS", repr(_BEHIND_TOOLS))
    .replace("SYSTEM", repr(_SYSTEM))
)


def chat_tokenizer() -> Any:
    """Return the tokenizer: printable ASCII, the template's strings, and any other character as its bytes.

    Any: transformers is not typed here.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    control = (PAD, END, START)
    # Between control tokens the text is cut at each word of the vocabulary, the longest first.
    cut = re.compile("|".join(map(re.escape, (*control, *WORDS))))
    strings = {part for text in (_SYSTEM, _BEFORE_TOOLS, _BEHIND_TOOLS) for part in cut.split(text) if len(part) > 1}
    pieces = sorted({*strings, *_PIECES}, key=len, reverse=True)
    single = ["\n", *string.printable[:95], *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: number for number, token in enumerate([*control, *WORDS, *pieces, *single])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*map(re.escape, pieces), r"[\s\S]"])), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in WORDS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def make_chat_model(path: Path, seed: int) -> Path:
    """Write a float32 Qwen3 with random weights of `seed`, and the chat tokenizer; return `path`."""
    tokenizer = chat_tokenizer()
    make_qwen3(path, seed, vocab_size=len(tokenizer), max_position=MAX_POSITION)
    tokenizer.save_pretrained(path)
    return path
