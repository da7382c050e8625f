"""Models without a family: base models, and chat models with a template of their own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from areal_agentic.renderer import Answer
from areal_core.contract.errors import DatasetError
from areal_core.contract.optional import ToolCall
from areal_renderers.auto import AutoRenderer
from areal_renderers.config import ChatOptions, TemplateConfig
from areal_renderers.families import qwen3
from areal_renderers.plain import PlainConfig, PlainRenderer
from areal_renderers.proof import TOOLS
from areal_renderers.template import TemplateRenderer
from areal_renderers.testing.conversations import TEXTS, answers, histories, tool, user
from areal_renderers.testing.tokenizers import family_tokenizer, published, tokenizer
from areal_torch.tokenizers import character_tokenizer

EOS = 1
LABELS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def test_the_quickstarts_model_speaks_in_turns() -> None:
    """A base model over characters: contents one after the other, each answer with its end token."""
    characters = character_tokenizer()
    renderer = AutoRenderer().bind(characters)
    first, second = [user("stone>")], [user("sun>")]
    output = [*characters.encode("enots"), EOS]

    assert renderer.name == "plain"
    assert frozenset({EOS}) == renderer.stop_token_ids
    assert characters.encode("stone>") == renderer.render(first)
    assert Answer(content="enots") == renderer.parse(output)
    assert characters.encode("sun>") == renderer.bridge(first, output, second)
    assert [EOS, *characters.encode("sun>")] == renderer.bridge(first, output[:-1], second)


@pytest.mark.parametrize(
    "config",
    [
        PlainConfig(),
        PlainConfig(separator="\n\n"),
        PlainConfig(prefixes={"user": "Q: ", "assistant": "A:"}, suffixes={"user": "\n", "assistant": "\n"}),
    ],
)
def test_the_law_holds_for_texts_one_after_the_other(config: PlainConfig) -> None:
    """Each part is encoded on its own, so that what follows never changes what stood before."""
    bpe = tokenizer(None, ("<bos>", "<eos>"), (), "<bos>", "<eos>")
    renderer = PlainRenderer(config).bind(bpe)

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(histories(num_calls=0), TEXTS, TEXTS)
    def check(history: list[dict[str, str]], said: str, following: str) -> None:
        prompt = renderer.render(history)
        whole = renderer.render([*history, {"role": "assistant", "content": said}, user(following)])
        output = renderer.render([*history, {"role": "assistant", "content": said}], ask=False)[len(prompt) :]

        bridge = renderer.bridge(history, output, [user(following)])
        assert whole == [*prompt, *output, *bridge]

    check()


def test_a_conversation_begins_as_the_tokenizer_begins_texts() -> None:
    """A beginning token that a tokenizer has and never writes is not written."""
    silent = tokenizer(None, ("<bos>", "<eos>"), (), "<bos>", "<eos>")

    assert silent.encode("stone") == PlainRenderer().bind(silent).render([user("stone")])
    assert silent.bos_token_id not in PlainRenderer().bind(silent).render([user("stone")])


def test_a_base_model_is_not_given_what_it_was_not_taught() -> None:
    """Tools, calls and roles that nobody named are refused; so is a model whose answers would have no end."""
    renderer = PlainRenderer().bind(character_tokenizer())
    call = Answer(content="", calls=[ToolCall(name="f", arguments="{}")]).message
    endless = character_tokenizer()
    endless.eos_token = None

    with pytest.raises(DatasetError, match="no place for tools"):
        renderer.render([user("a")], tools=TOOLS)
    with pytest.raises(DatasetError, match="no place for calls"):
        renderer.render([user("a"), call])
    with pytest.raises(DatasetError, match="the role 'critic'"):
        renderer.render([{"role": "critic", "content": "a"}])
    with pytest.raises(DatasetError, match="where an answer ends"):
        PlainRenderer().bind(endless)
    assert EOS not in renderer.render([user("<eos>")])


def test_a_template_without_tokens_of_its_own() -> None:
    """Where no token closes an answer, the bridge is the template's text, unless a token lies across its border."""
    bpe = tokenizer(LABELS, (), (), None, "<eos>")
    bpe.add_special_tokens({"eos_token": "<eos>"})
    renderer = AutoRenderer().bind(bpe)
    output = bpe.encode("Hello", add_special_tokens=False)
    bridged = []

    assert renderer.name == "template"
    bridge = renderer.bridge([user("Hi")], output, [user("Yes")])
    assert renderer.text(bridge) == "\nuser: Yes\nassistant: "

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(TEXTS, TEXTS)
    def check(said: str, following: str) -> None:
        prompt = renderer.render([user("Hi")])
        told = renderer.render([user("Hi"), {"role": "assistant", "content": said}], ask=False)
        output = bpe.encode(said, add_special_tokens=False)
        if told[: len(prompt) + len(output)] != prompt + output:
            return
        bridge = renderer.bridge([user("Hi")], output, [user(following)])
        bridged.append(bridge is not None)
        whole = renderer.render([user("Hi"), {"role": "assistant", "content": said}, user(following)])
        assert bridge is None or prompt + output + bridge == whole

    check()
    assert any(bridged)


def test_answers_that_become_shorter_begin_a_new_trajectory() -> None:
    """A template that writes an answer otherwise once another message follows it has no bridge, in any family."""
    source = published("smollm2").replace("+ message['content'] +", "+ message['content'][:none if loop.last else 3] +")
    own = tokenizer(source, ("<|im_start|>", "<|im_end|>"), (), None, "<|im_end|>")
    renderer = TemplateRenderer().bind(own)

    assert renderer.bridge([user("Hi")], own.encode("Hello there<|im_end|>"), [user("Yes")]) is None
    assert renderer.bridge([user("Hi")], own.encode("Yes<|im_end|>"), [user("Yes")]) is not None


def test_options_name_how_a_model_writes() -> None:
    """`template` reads content only, until the options name ways of thoughts and calls, which are proven too."""
    own = tokenizer(published("qwen3"), ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>"), None, "<|im_end|>")
    text = '<think>\na\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call><|im_end|>'
    output = own.encode(text, add_special_tokens=False)
    named = TemplateRenderer(TemplateConfig(thoughts="think", calls="json")).bind(own)

    assert Answer(content=text.removesuffix("<|im_end|>")) == TemplateRenderer().bind(own).parse(output)
    expected = Answer(content="", thoughts="a", calls=[ToolCall(name="add", arguments="{}")])
    assert expected == named.parse(output)
    with pytest.raises(DatasetError, match="an answer in"):
        TemplateRenderer(TemplateConfig(thoughts="think", calls="xml")).bind(own)


def test_a_changed_template_is_not_of_the_family() -> None:
    """Fine-tuned models with calls of another form look like the family; the proof shows where they differ."""
    source = published("qwen3").replace('"arguments": ', '"arguments":  {}, "parameters": ')
    changed = tokenizer(source, ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>"), None, "<|im_end|>")

    with pytest.raises(DatasetError, match=r"does not write conversations.*") as refused:
        qwen3().bind(changed)
    assert "look_up" in str(refused.value)
    with pytest.raises(DatasetError, match="is not of the family 'qwen3'"):
        qwen3().bind(family_tokenizer("llama3"))


@pytest.mark.parametrize("said", ["tool | tojson", "tool_call.arguments | tojson"])
def test_a_template_that_writes_ascii_is_refused(said: str) -> None:
    """Where JSON is written in ASCII, the text of a control token in it would come to be another text."""
    source = published("qwen3").replace(said, said.replace("tojson", "tojson(ensure_ascii=True)"))
    changed = tokenizer(source, ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>"), None, "<|im_end|>")

    assert source != published("qwen3")
    with pytest.raises(DatasetError, match="as text in calls and tools"):
        AutoRenderer().bind(changed)


def test_auto_says_which_it_took_and_why(caplog: pytest.LogCaptureFixture) -> None:
    """A model that looks like a family and is not gets `template`, with the conversation that differs in the log."""
    source = published("qwen3").replace('"arguments": ', '"arguments":  {}, "parameters": ')
    changed = tokenizer(source, ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>"), None, "<|im_end|>")

    assert AutoRenderer(ChatOptions()).bind(changed).name == "template"
    assert "'qwen3' does not hold" in caplog.text


def test_a_bridge_law_holds_on_any_template_for_content_only() -> None:
    """`template` on a model of a known family, read as content only, still never drifts."""
    qwen = family_tokenizer("qwen3")
    renderer = TemplateRenderer().bind(qwen)
    bridged = []

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(histories(max_turns=2), answers())
    def check(history: list[dict[str, str]], answer: Answer) -> None:
        following = [tool("3")] if answer.calls else [user("And?")]
        prompt = renderer.render(history, tools=TOOLS)
        told = renderer.render([*history, answer.message], tools=TOOLS, ask=False)
        if told[: len(prompt)] != prompt:
            return
        output = told[len(prompt) : -1]
        read = renderer.parse(output).message
        if renderer.render([*history, read], tools=TOOLS, ask=False) != told:
            return
        bridge = renderer.bridge(history, output, following, tools=TOOLS)
        bridged.append(bridge is not None)
        whole = renderer.render([*history, read, *following], tools=TOOLS)
        assert bridge is None or prompt + output + bridge == whole

    check()
    assert any(bridged)
