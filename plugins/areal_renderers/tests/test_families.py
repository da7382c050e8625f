"""Every family against its models' own chat templates, on conversations that hypothesis makes."""

from __future__ import annotations

import copy
import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agentic.renderer import Answer, BoundRenderer, Renderer
from areal_core.contract.errors import DatasetError
from areal_renderers.auto import AutoRenderer
from areal_renderers.bound import BoundTemplate
from areal_renderers.proof import TOOLS
from areal_renderers.testing.conversations import TEXTS, answers, as_object, histories, tool, user
from areal_renderers.testing.tokenizers import TEMPLATES, family_tokenizer

each_template = pytest.mark.parametrize("template", TEMPLATES)


def bound(template: str) -> BoundTemplate:
    renderer = AutoRenderer().bind(family_tokenizer(template))
    assert isinstance(renderer, BoundTemplate)
    return renderer


@pytest.fixture(scope="module")
def renderers() -> dict[str, BoundTemplate]:
    return {template: bound(template) for template in TEMPLATES}


def by_template(template: str, messages: Any, tools: Any, *, ask: bool) -> list[int] | None:
    """Return what the model's own template gives, asked through transformers alone; None where it refuses."""
    own = "thinking" if template == "gptoss" else "reasoning_content"
    told = [{own if key == "reasoning_content" else key: value for key, value in each.items()} for each in messages]
    if template != "deepseekv3":  # the others take arguments as objects, this one as text
        told = [as_object(message) for message in told]
    tokenizer = family_tokenizer(template)
    try:
        found = tokenizer.apply_chat_template(told, tools=tools or None, add_generation_prompt=ask, return_dict=False)
    except (jinja2.TemplateError, TypeError):
        return None
    return list(found)


@each_template
def test_a_family_is_found_by_its_proof(template: str, renderers: dict[str, BoundTemplate]) -> None:
    """`auto` takes the family of every published template, and it is what the contract says."""
    assert TEMPLATES[template] == renderers[template].name
    assert isinstance(AutoRenderer(), Renderer)
    assert isinstance(renderers[template], BoundRenderer)


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        ("qwen2_5", {"<|im_end|>", "<|endoftext|>"}),
        ("qwen3", {"<|im_end|>", "<|endoftext|>"}),
        ("smollm2", {"<|im_end|>"}),
        ("llama3_1", {"<|eot_id|>", "<|eom_id|>"}),
        ("deepseekv3", {"<\uff5cend\u2581of\u2581sentence\uff5c>"}),
        ("glm4moe", {"<|user|>", "<|observation|>", "<|endoftext|>"}),
        ("gptoss", {"<|return|>", "<|call|>"}),
    ],
)
def test_an_answer_ends_by_every_token_that_the_models_end_theirs_by(
    template: str, ends: set[str], renderers: dict[str, BoundTemplate]
) -> None:
    """As generation_config.json of the published models names them: an engine that misses one writes on."""
    tokenizer = family_tokenizer(template)

    assert {tokenizer.convert_ids_to_tokens(token) for token in renderers[template].stop_token_ids} == ends


def test_a_prompt_may_open_the_thoughts_and_an_answer_may_have_none() -> None:
    """A template that opens thoughts, and writes an empty block where there were none, is proven like any other."""
    own = family_tokenizer("qwen3")
    opening = copy.deepcopy(own)
    asked = own.chat_template.index("{%- if add_generation_prompt %}")
    opens = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
    opening.chat_template = own.chat_template[:asked] + opens

    renderer = AutoRenderer().bind(opening)

    assert isinstance(renderer, BoundTemplate)
    assert renderer.name == "qwen3"
    output = opening.encode("Sums.\n</think>\n\n3<|im_end|>", add_special_tokens=False)
    assert Answer(content="3", thoughts="Sums.") == renderer.parse(output)


@each_template
def test_rendering_is_the_models_own_template(template: str, renderers: dict[str, BoundTemplate]) -> None:
    """What is rendered is what transformers gives, token for token, or both refuse it."""
    renderer = renderers[template]
    places = renderer.template.places

    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(messages=histories(places.num_calls if places.tool else 0), with_tools=st.booleans(), ask=st.booleans())
    def check(messages: list[dict[str, Any]], with_tools: bool, ask: bool) -> None:
        tools = TOOLS if with_tools and places.tools else ()
        expected = by_template(template, messages, tools, ask=ask)
        if expected is None:
            with pytest.raises(DatasetError):
                renderer.render(messages, tools=tools, ask=ask)
        else:
            assert expected == renderer.render(messages, tools=tools, ask=ask)

    check()


@each_template
def test_the_law_of_the_bridge(template: str, renderers: dict[str, BoundTemplate]) -> None:
    """Where an answer is as the template writes it, prompt, answer and bridge are the conversation rendered anew."""
    renderer = renderers[template]
    places = renderer.template.places
    num_calls = places.num_calls if places.tool else 0
    bridged: list[bool] = []
    num_examples = 80 if template == "deepseekv3" else 25  # it bridges nothing but answers to what a tool said

    @settings(max_examples=num_examples, deadline=None, derandomize=True)
    @given(histories(num_calls, max_turns=2), answers(num_calls), TEXTS, st.booleans())
    def check(history: list[dict[str, Any]], answer: Any, content: str, closed: bool) -> None:
        tools = TOOLS if places.tools else ()
        following = [tool(content) for _ in answer.calls] or [user(content)]
        prompt = by_template(template, history, tools, ask=True)
        told = by_template(template, [*history, answer.message], tools, ask=False)
        if prompt is None or told is None or told[: len(prompt)] != prompt:
            return
        output = told[len(prompt) :]
        ends = [place for place, token in enumerate(output) if token in renderer.stop_token_ids]
        output = output[: ends[-1] + closed] if ends else output
        read = renderer.parse(output, tools=tools)
        again = by_template(template, [*history, read.message], tools, ask=False)
        if told != again:
            assert renderer.opened and not closed, "an answer that was read is written again as it was"
            return  # cut: nobody can tell whether these were thoughts
        assert [call.name for call in answer.calls] == [call.name for call in read.calls]
        assert [json.loads(call.arguments) for call in answer.calls] == [json.loads(c.arguments) for c in read.calls]

        bridge = renderer.bridge(history, output, following, tools=tools)

        whole = by_template(template, [*history, read.message, *following], tools, ask=True)
        bridged.append(bridge is not None)
        assert bridge is None or prompt + output + bridge == whole

    check()
    assert any(bridged) == (template != "deepseek_r1_distill"), "this one drops thoughts that each prompt opens"
