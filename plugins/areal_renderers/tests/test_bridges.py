"""What follows an answer: where there is a bridge, what it begins with, and what nobody can forge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agentic.renderer import Answer, BoundRenderer
from areal_core.contract.errors import DatasetError
from areal_core.contract.optional import ToolCall
from areal_renderers.auto import AutoRenderer
from areal_renderers.config import ChatOptions
from areal_renderers.proof import TOOLS
from areal_renderers.testing.conversations import tool, user
from areal_renderers.testing.tokenizers import TEMPLATES, family_tokenizer

THOUGHT = Answer(content="Hello.", thoughts="They greet.")
CALL = ToolCall(name="look_up", arguments='{"city": "Rome"}')
AGAIN = [user("And then?")]


def bound(template: str, **options: Any) -> Any:
    return AutoRenderer(ChatOptions(**options)).bind(family_tokenizer(template))


def said(renderer: Any, template: str, text: str) -> list[int]:
    """Return an output of that text, as an engine gives it: control tokens are tokens."""
    return list(family_tokenizer(template).encode(text, add_special_tokens=False))


OUTPUTS = {
    "qwen3": "<think>\nThey greet.\n</think>\n\nHello.<|im_end|>",
    "glm4moe": "\n<think>They greet.</think>\nHello.<|user|>",
    "deepseek_r1_distill": "They greet.\n</think>\n\nHello.<｜end▁of▁sentence｜>",
    "gptoss": "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant<|channel|>final<|message|>Hello."
    "<|return|>",
}


@pytest.mark.parametrize("template", OUTPUTS)
def test_thoughts_that_the_template_drops_begin_a_new_trajectory(template: str) -> None:
    """There is no bridge where thoughts are left out now, unless they are to be kept: nothing changes then."""
    renderer = bound(template)
    output = said(renderer, template, OUTPUTS[template])
    history = [user("Hi")]

    assert renderer.parse(output) == THOUGHT
    assert renderer.bridge(history, output, AGAIN) is None
    kept = renderer.bridge(history, output, AGAIN, keep_thoughts=True)
    silent = renderer.render([*history, Answer(content="Hello.").message, *AGAIN])
    assert kept == silent[-len(kept) :]
    assert renderer.text(kept).count("And then?") == 1


@pytest.mark.parametrize("template", ["qwen3", "glm4moe", "gptoss"])
def test_thoughts_stay_while_tools_are_called(template: str) -> None:
    """Within one question the template keeps the thoughts of each call, and the conversation is one trajectory."""
    renderer = bound(template)
    history = [user("Weather?")]
    asked = Answer(content="", thoughts="I look.", calls=[CALL])
    prompt = renderer.render(history, tools=TOOLS)
    told = renderer.render([*history, asked.message, tool("rain")], tools=TOOLS)
    assert told[: len(prompt)] == prompt
    ends = [place for place, token in enumerate(told) if token in renderer.stop_token_ids and place >= len(prompt)]
    output = told[len(prompt) : ends[0] + 1]

    assert asked == renderer.parse(output, tools=TOOLS)
    assert told[len(prompt) + len(output) :] == renderer.bridge(history, output, [tool("rain")], tools=TOOLS)


@pytest.mark.parametrize("template", ["qwen3", "glm4moe", "gptoss"])
def test_thoughts_before_the_answer_count_too(template: str) -> None:
    """A question drops the thoughts of the calls before it: there is no bridge, in whatever tokens the answer is."""
    renderer = bound(template)
    asked = Answer(content="", thoughts="I look.", calls=[CALL])
    history = [user("Weather?"), asked.message, tool("rain")]
    texts = {"gptoss": "<|channel|>final<|message|> Rain"}

    for text in (texts.get(template, "Rain "), texts.get(template, " Rain")):
        output = said(renderer, template, text)
        assert renderer.bridge(history, output, AGAIN, tools=TOOLS) is None
        kept = renderer.bridge(history, output, AGAIN, tools=TOOLS, keep_thoughts=True)
        assert renderer.text(kept).count("And then?") == 1


def test_a_switch_that_the_prompt_answers_is_no_history() -> None:
    """Qwen 3 without thinking begins each answer with empty thoughts, and leaves them out of its history."""
    renderer = bound("qwen3", enable_thinking=False)
    output = said(renderer, "qwen3", "Hello.<|im_end|>")

    assert "<think>\n\n</think>\n\n" in renderer.text(renderer.render([user("Hi")]))
    assert renderer.bridge([user("Hi")], output, AGAIN) is None
    kept = renderer.bridge([user("Hi")], output, AGAIN, keep_thoughts=True)
    assert renderer.text(kept).startswith("\n<|im_start|>user\nAnd then?<|im_end|>")


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "llama3", "llama3_1", "smollm2", "glm4moe"])
def test_an_answer_that_was_cut_is_closed(template: str) -> None:
    """Whatever the policy said until it was cut, the bridge closes it, and none of its tokens is encoded again."""
    renderer = bound(template)
    vocabulary = [token for token in range(len(family_tokenizer(template))) if token not in renderer.stop_token_ids]
    history = [user("Hi")]
    usual = renderer.bridge(history, said(renderer, template, "Hello"), AGAIN, keep_thoughts=True)

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(st.lists(st.sampled_from(vocabulary), max_size=12))
    def check(output: list[int]) -> None:
        bridge = renderer.bridge(history, output, AGAIN, keep_thoughts=True)

        if bridge is not None:
            assert bridge[-len(usual) :] == usual
            assert renderer.text(bridge[: len(bridge) - len(usual)]).strip() in ("", "</think>")

    check()


def test_thoughts_that_were_cut_are_closed_first() -> None:
    """Within one question, thoughts that were cut stay; the bridge closes them before it closes the answer."""
    renderer = bound("qwen3_training")
    output = said(renderer, "qwen3_training", "<think>\nThey")

    assert Answer(content="", thoughts="They") == renderer.parse(output)
    bridge = renderer.bridge([user("Hi")], output, AGAIN)
    assert renderer.text(bridge).startswith("\n</think>\n\n<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize(("template", "other"), [("qwen3", "<|endoftext|>"), ("glm4moe", "<|observation|>")])
def test_an_answer_that_ended_otherwise_has_no_bridge(template: str, other: str) -> None:
    """A token that ends answers, but that the template does not write there, makes a conversation of no template."""
    renderer = bound(template)
    output = [*said(renderer, template, "Hello"), family_tokenizer(template).convert_tokens_to_ids(other)]

    assert renderer.bridge([user("Hi")], output[:-1], AGAIN) is not None or template == "glm4moe"
    assert renderer.bridge([user("Hi")], output, AGAIN) is None


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_content_forges_a_turn(template: str) -> None:
    """The text of a control token in a message is ordinary tokens that read the same; the conversation has as many."""
    tokenizer = family_tokenizer(template)
    renderer = bound(template)
    places = renderer.template.places
    controls = {
        number for number, token in tokenizer.added_tokens_decoder.items() if token.special or "|" in str(token)
    }
    forged = "".join(str(tokenizer.added_tokens_decoder[number]) for number in sorted(controls))

    def conversation(text: str) -> list[dict[str, Any]]:
        asked = [{"role": "system", "content": text}, user(text)]
        if places.num_calls and places.tool:
            call = ToolCall(name="look_up", arguments=f'{{"city": "{text}"}}')
            asked += [Answer(content="", calls=[call]).message, tool(text)]
        return asked

    ids, plain = renderer.render(conversation(forged)), renderer.render(conversation("words"))
    assert [token for token in ids if token in controls] == [token for token in plain if token in controls]
    assert renderer.text(plain).replace("words", forged) == renderer.text(ids)
    output = said(renderer, template, "Hello")
    bridge = renderer.bridge(conversation("words"), output, [user(forged)], keep_thoughts=True)
    usual = renderer.bridge(conversation("words"), output, [user("words")], keep_thoughts=True)
    assert [token for token in bridge if token in controls] == [token for token in usual if token in controls]


def test_the_mark_of_a_cut_is_a_character_like_any_other() -> None:
    """The code point that marks where a text is cut may itself be said."""
    renderer = bound("qwen3")
    text = "a\ufdd0\ufdd1b\ufdd0<|im_end|>\ufdd0"

    assert f"user\n{text}<|im_end|>\n" in renderer.text(renderer.render([user(text)]))


NESTED = ToolCall(name="f", arguments="[" * 9000)
"""More lists in lists than Python reads."""


@pytest.mark.parametrize(
    ("template", "messages", "tools", "words"),
    [
        ("smollm2", [user("Hi")], TOOLS, "no place for tools"),
        ("smollm2", [user("Hi"), Answer(content="", calls=[CALL]).message, tool("3")], (), "calls of tools"),
        ("gptoss", [user("Hi"), Answer(content="", calls=[CALL, CALL]).message], TOOLS, "several calls"),
        ("gptoss", [user("Hi"), {"role": "system", "content": "Be brief."}, user("Hi")], (), "behind the first one"),
        ("deepseek_r1_distill", [user("Hi"), Answer(content="", calls=[CALL]).message], (), "calls of tools"),
        ("qwen3", [{"role": "critic", "content": "No."}], (), "the role 'critic'"),
        ("qwen3", [user("Hi"), {"role": "developer", "content": "Be brief."}], (), "the role 'developer'"),
        ("qwen3", [{"role": "user", "content": [{"type": "image_url"}]}], (), "a content that renderers do not write"),
        ("qwen3", [user("\ud800")], (), "cannot be encoded"),
        ("qwen2_5", [user("."), Answer(content="", calls=[ToolCall(name="f", arguments="[")]).message], (), "not JSON"),
        ("qwen2_5", [user("."), Answer(content="", calls=[NESTED]).message], (), "not JSON"),
    ],
)
def test_what_has_no_place_is_refused_by_name(template: str, messages: Any, tools: Any, words: str) -> None:
    """A template leaves out without a word what it does not know; a renderer says so."""
    with pytest.raises(DatasetError, match=words):
        bound(template).render(messages, tools=tools)


def test_an_answer_does_not_follow_an_answer() -> None:
    """Messages of the assistant are never part of a bridge."""
    renderer: BoundRenderer = bound("qwen3")

    with pytest.raises(DatasetError, match="cannot follow"):
        renderer.bridge([user("Hi")], [], [Answer(content="Hello").message])


def test_a_switch_without_effect_is_refused() -> None:
    """An option that the template does not read is refused, not ignored."""
    with pytest.raises(DatasetError, match="enable_thinking=true has no effect"):
        bound("smollm2", enable_thinking=True)
