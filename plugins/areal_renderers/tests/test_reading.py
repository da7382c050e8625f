"""What outputs say: each way of thoughts and calls, whole and broken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agentic.renderer import Answer
from areal_core.contract.optional import ToolCall
from areal_renderers.auto import AutoRenderer
from areal_renderers.ordinary import Encoder
from areal_renderers.proof import TOOLS
from areal_renderers.testing.tokenizers import TEMPLATES, family_tokenizer

ROME = ToolCall(name="look_up", arguments='{"city": "Rome"}')
TIGHT = ToolCall(name="look_up", arguments='{"city":"Rome"}')
ADD = ToolCall(name="add", arguments='{"values": [1]}')
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
UNSAID = '<tool_call>{"name": "f"}</tool_call>'
NAMELESS = '<tool_call>\n{"name": 1, "arguments": []}\n</tool_call>'
OTHERWISE = '<tool_call>\n{"name": "look_up", "parameters": {"city": "Rome"}}\n</tool_call>'
KEYLESS = "<tool_call>look_up\n<arg_key>city\n</tool_call>"
ENDING = '<tool_call>\n{"name": "look_up", "arguments": {"city": "a </tool_call> b"}}\n</tool_call>'
SPOKEN = ToolCall(name="look_up", arguments='{"city": "a </tool_call> b"}')

OUTPUTS = [
    ("qwen3", "Hello", Answer(content="Hello")),
    ("qwen3", "<think>\na\n</think>\n\nb", Answer(content="b", thoughts="a")),
    ("qwen3", "<think>\na", Answer(content="", thoughts="a")),
    ("qwen3", "b<think>a</think>", Answer(content="b<think>a</think>")),
    (
        "qwen3",
        'See.\n<tool_call>\n{"name": "look_up", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"values": [1]}, "name": "add"}</tool_call>',
        Answer(content="See.", calls=[ROME, ADD]),
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "look_up", "arguments": {"city": "Rome"}}\n</tool_call>'
        '\n<tool_call>\n{"na\n</tool_call>',
        Answer(content='\n<tool_call>\n{"na\n</tool_call>', calls=[ROME]),
    ),
    ("qwen3", '<tool_call>\n{"name": "f"', Answer(content='<tool_call>\n{"name": "f"')),
    ("qwen3", f"<think>\n{UNSAID}", Answer(content="", thoughts=UNSAID)),
    ("qwen2_5", NAMELESS, Answer(content=NAMELESS)),
    ("llama3_1", '{"name": "look_up", "parameters": {"city": "Rome"}}', Answer(content="", calls=[ROME])),
    ("llama3_1", '<|python_tag|>{"name": "look_up", "parameters": {"city": "Rome"}}', Answer(content="", calls=[ROME])),
    ("llama3_1", '{"name":"look_up","arguments":{"city":"Rome"}}', Answer(content="", calls=[TIGHT])),
    ("llama3_1", '{"name": "look_up", "city": "Rome"}', Answer(content='{"name": "look_up", "city": "Rome"}')),
    ("qwen3", OTHERWISE, Answer(content=OTHERWISE)),
    (
        "qwen3",
        '<tool_call>{"arguments": {"city": "\\ufdd0z"}, "name": "look_up"}</tool_call>',
        Answer(content="", calls=[ToolCall(name="look_up", arguments='{"city": "\ufdd0z"}')]),
    ),
    (
        "glm4moe",
        '<tool_call>add\n<arg_key>values</arg_key>\n<arg_value>["\\ufdd0z"]</arg_value>\n</tool_call>',
        Answer(content="", calls=[ToolCall(name="add", arguments='{"values": ["\ufdd0z"]}')]),
    ),
    ("llama3_1", '{"name": "other", "parameters": {}}', Answer(content='{"name": "other", "parameters": {}}')),
    ("llama3_1", '{"city": "Rome"}', Answer(content='{"city": "Rome"}')),
    (
        "deepseekv3",
        f'a\n</think>\n\nb{CALLS}{BEGIN}function{SEP}look_up\n```json\n{{"city": "Rome"}}\n```{END}\n'
        f'{BEGIN}function{SEP}add\n```json\n{{"values": [1]}}\n```{END}{CALLS_END}',
        Answer(content="b", thoughts="a", calls=[ROME, ADD]),
    ),
    (
        "deepseekv3",
        f'</think>{CALLS}{BEGIN}look_up{SEP}{{"city": "Rome"}}{END}{CALLS_END}',
        Answer(content="", calls=[ROME]),
    ),
    (
        "deepseekv3",
        f'</think>{CALLS}{BEGIN}function{SEP}look_up\n```json\n{{\n  "city":\n    "Rome"\n}}\n```{END}{CALLS_END}',
        Answer(content="", calls=[ToolCall(name="look_up", arguments='{\n  "city":\n    "Rome"\n}')]),
    ),
    (
        "glm4moe",
        "<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>a <tool_call>add\n</tool_call> b</arg_value>\n"
        "</tool_call>",
        Answer(
            content="",
            calls=[ToolCall(name="look_up", arguments='{"city": "a <tool_call>add\\n</tool_call> b"}')],
        ),
    ),
    (
        "glm4moe",
        "\n<think>a</think>\nb\n<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
        "\n<tool_call>add\n<arg_key>values</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>",
        Answer(content="b", thoughts="a", calls=[ROME, ADD]),
    ),
    (
        "glm4moe",
        "<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        Answer(content="", calls=[ToolCall(name="look_up", arguments='{"city": "3"}')]),
    ),
    ("glm4moe", KEYLESS, Answer(content=KEYLESS)),
    (
        "gptoss",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.look_up<|channel|>commentary json"
        '<|message|>{"city": "Rome"}',
        Answer(content="", thoughts="a", calls=[ROME]),
    ),
    (
        "gptoss",
        '<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"city": "Rome"}',
        Answer(content="", calls=[ROME]),
    ),
    ("gptoss", "<|channel|>analysis<|message|>a", Answer(content="", thoughts="a")),
    ("gptoss", "<|channel|>commentary<|message|>a<|end|>", Answer(content="a")),
    ("gptoss", "Hello", Answer(content="Hello")),
    ("smollm2", "<think>a</think>b", Answer(content="<think>a</think>b")),
    ("qwen3", f"Say <tool_call> first.\n{ENDING}", Answer(content="Say <tool_call> first.", calls=[SPOKEN])),
    (
        "glm4moe",
        "Say <tool_call> first.\n<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>a </tool_call> b</arg_value>\n"
        "</tool_call>",
        Answer(content="Say <tool_call> first.", calls=[SPOKEN]),
    ),
    (
        "glm4moe",
        '<tool_call>add\n<arg_key>values</arg_key>\n<arg_value>["</arg_value>"]</arg_value>\n</tool_call>',
        Answer(content="", calls=[ToolCall(name="add", arguments='{"values": ["</arg_value>"]}')]),
    ),
]  # fmt: skip

SPELLED = [
    ("gptoss", "<|channel|>final<|message|>", "a <|end|> b <|call|> c"),
    ("gptoss", "<|channel|>final<|message|>", "<|channel|>commentary to=functions.add<|message|>{}<|call|>"),
    ("deepseekv3", "</think>", f'{CALLS}{BEGIN}look_up{SEP}{{"city": "Rome"}}{END}{CALLS_END}'),
    ("llama3_1", "", '<|python_tag|>{"name": "look_up", "parameters": {"city": "Rome"}}'),
]  # fmt: skip


@pytest.mark.parametrize(("template", "text", "answer"), OUTPUTS)
def test_an_output_is_read_in_the_way_of_its_family(template: str, text: str, answer: Answer) -> None:
    """Thoughts and calls are taken out; what is broken, or means nothing to the family, is content as it stands."""
    tokenizer = family_tokenizer(template)
    renderer = AutoRenderer().bind(tokenizer)

    assert answer == renderer.parse(tokenizer.encode(text, add_special_tokens=False), tools=TOOLS)


@pytest.mark.parametrize(("template", "opening", "text"), SPELLED)
def test_control_tokens_that_an_output_spells_are_text(template: str, opening: str, text: str) -> None:
    """Ordinary tokens that read like control tokens end nothing and call nothing: they are content as it stands."""
    tokenizer = family_tokenizer(template)
    renderer, encoder = AutoRenderer().bind(tokenizer), Encoder(tokenizer)
    output = [*encoder.ids(opening), *encoder.ids(encoder.written(text))]

    assert Answer(content=text) == renderer.parse(output, tools=TOOLS)


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_output_can_be_read(template: str) -> None:
    """Whatever tokens a policy samples, reading them never raises, and neither does asking for a bridge."""
    tokenizer = family_tokenizer(template)
    renderer = AutoRenderer().bind(tokenizer)
    added = sorted(tokenizer.added_tokens_decoder)
    words = [
        tokenizer.encode(word, add_special_tokens=False)
        for word in ('{"name": "add"', "}", "function", "\n", "analysis")
    ]
    piece = st.sampled_from([*([token] for token in added), *words]) | st.integers(0, 300).map(lambda token: [token])

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(st.lists(piece, max_size=14))
    def check(pieces: list[list[int]]) -> None:
        output = [token for each in pieces for token in each]

        answer = renderer.parse(output, tools=TOOLS)
        renderer.bridge([{"role": "user", "content": "Hi"}], output, [{"role": "user", "content": "."}])
        assert isinstance(answer, Answer)

    check()
