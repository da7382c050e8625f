"""Tiny byte-level tokenizers with chat templates, which encode any text and few texts as a model would write them.

Their merges lie where conversations break: "ab" and "ba" inside of words, two line breaks, a brace and a line break.
So an answer whose letters come one by one is another after decoding and encoding, and so is text cut at a wrong place.

Knows: the templates, and how they are built.
Does not know: renderers, or any model.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from areal_conformance.outcome import HarnessError

PAD, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
UNFLAGGED = "<|file_sep|>"
"""A control token that is no special one, as published tokenizers have some."""
_MERGES = (("a", "b"), ("b", "a"), ("e", "r"), ("\u0120", "a"), ("\u010a", "\u010a"), ("}", "\u010a"))
"""Of pieces as byte-level tokenizers spell them: U+0120 is a space, U+010A a line break."""

SYSTEM = "You are a small model. You are a helpful assistant."
"""What the template `chatml` says where a conversation has no system message."""

_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- elif default %}{{- default + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- elif default %}
    {{- '<|im_start|>system\\n' + default + '<|im_end|>\\n' }}
{%- endif %}
"""  # noqa: E501  # a template breaks lines where it writes them

_ANSWERED = """
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- raise_exception('no such role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_CALLS = """
        {%- for call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {%- set as_text = as_is and call.arguments is string %}
            {{- call.arguments if as_text else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
"""

_SAID = """
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "system" %}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content or '' %}
"""

CHATML = (
    f"{{%- set default = '{SYSTEM}' %}}{{%- set as_is = false %}}{_TOOLS}{_SAID}"
    f"{{{{- '<|im_start|>assistant\\n' + content }}}}{_CALLS}{_ANSWERED}"
)
"""As Qwen 2.5 has it: a system message of its own, tools in it, answers of tools as the user's."""

THINKING = (
    f"{{%- set default = '' %}}{{%- set as_is = true %}}{_TOOLS}"
    + """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == "user" %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
"""
    + _SAID
    + """
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
"""
    + _CALLS
    + _ANSWERED
)
"""As Qwen 3 has it: thoughts since the last question of the user are kept, those before it are left out."""

TEMPLATES: Mapping[str, str] = MappingProxyType({"chatml": CHATML, "thinking": THINKING, "bare": ""})
"""Kind of tokenizer -> its chat template; `bare` has none."""


def _swapped(old: str, new: str) -> Callable[[str], str]:
    def swap(template: str) -> str:
        if old not in template:
            raise HarnessError(f"the suite's own template has no {old!r} to change")
        return template.replace(old, new)

    return swap


_THOUGHTS = "\n        {%- if message.reasoning_content and loop.index0 > ns.last %}"

_OPENING = _swapped("assistant\\n' }}{%- endif %}", "assistant\\n<think>\\n' }}{%- endif %}")(
    THINKING.replace(_THOUGHTS, _THOUGHTS.replace("message.reasoning_content and ", "")).replace(
        "message.reasoning_content.strip", "(message.reasoning_content or '').strip"
    )
)
OPENING: Mapping[str, str] = MappingProxyType({"opening": _OPENING, "flagged": _OPENING})
"""Kinds that a renderer is bound to where its adapter names them: as `thinking`, and the prompt opens the thoughts; the
marks of thoughts are special tokens in `flagged`."""

STRANGE: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "another default system message": _swapped(SYSTEM, SYSTEM[:-1] + "!"),
        "no line break after a message": _swapped(
            "message.content + '<|im_end|>\\n'", "message.content + '<|im_end|>'"
        ),
        "contents trimmed": _swapped("+ message.content + '<|im_end|>", "+ message.content | trim + '<|im_end|>"),
        "contents of the assistant trimmed": _swapped("message.content or ''", "(message.content or '') | trim"),
        "tools sorted by name": _swapped("in tools %}", "in tools | sort(attribute='function.name') %}"),
        "each answer of a tool alone": _swapped('loop.first or messages[loop.index0 - 1].role != "tool"', "true"),
        "an answer opened with a word": _swapped("assistant\\n' }}{%- endif %}", "assistant\\nWell' }}{%- endif %}"),
    }
)
"""What a template may do that a look at its beginning does not show: name -> the change of `chatml`."""

_TEXT_ALONE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_UNSAID = "(message.content if message.role in ('user', 'assistant') else '')"

FORGETFUL: Mapping[str, str] = MappingProxyType(
    {
        "texts alone": _TEXT_ALONE,
        "texts of the user and the assistant": _TEXT_ALONE.replace("(message.content or '')", _UNSAID),
        "one call of several": _swapped("in message.tool_calls or []", "in (message.tool_calls or [])[:1]")(CHATML),
        "no content beside calls": _swapped("+ content }}", "+ ('' if message.tool_calls else content) }}")(CHATML),
        "no answers of tools": _swapped("+ message.content + '\\n</tool_response>", "+ '\\n</tool_response>")(CHATML),
    }
)
"""Templates that leave a part of a conversation out without a word: what they write -> the template."""


@functools.cache
def tiny_tokenizer(kind: str) -> Any:
    """Return a tokenizer: of a kind of `TEMPLATES` or `OPENING`, or what a function returns: `module:function`, or with
    an argument `module:function:argument`. Any: transformers' own.

    Raises:
        HarnessError: there is no such kind, or no such function.
    """
    module, colon, call = kind.partition(":")
    if colon:
        name, *argument = call.split(":", 1)
        try:
            return getattr(importlib.import_module(module), name)(*argument)
        except (ImportError, AttributeError) as error:
            raise HarnessError(f"the adapter names the tokenizer {kind!r}: {error}") from error
    known = {**TEMPLATES, **OPENING}
    if kind not in known:
        raise HarnessError(f"there is no tokenizer {kind!r}: kinds are {', '.join(known)}, or module:function")
    return with_template(known[kind], flagged=kind == "flagged")


def with_template(template: str, *, flagged: bool = False) -> Any:
    """Return a tokenizer with a chat template, none if it is empty; its marks of thoughts may be special tokens.

    Any: transformers' own.
    """
    vocabulary = {piece: number for number, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {left + right: len(vocabulary) + number for number, (left, right) in enumerate(_MERGES)}
    made = Tokenizer(BPE(vocabulary, list(_MERGES)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([PAD, BEGIN, END])
    marks = [AddedToken(word, special=flagged, normalized=False) for word in ("<think>", "</think>")]
    (made.add_special_tokens if flagged else made.add_tokens)(marks)
    made.add_tokens([AddedToken(UNFLAGGED, special=False, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    if template:
        tokenizer.chat_template = template
    return tokenizer
