"""Rows to learn from become the tokens a run would have generated, and only answers are learned."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets.encoding import ChatConfig, FormConfig, Tokens
from areal_tasks.datasets.forms import preference, prompt_text, supervised
from areal_torch.tokenizers import character_tokenizer

TURNS = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
ASK = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
THINKING = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' and loop.last %}<think></think>"
    "{% endif %}{{ m['content'] }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


def words(template: str | None = TURNS + ASK, end: str | None = "<|end|>") -> Any:
    """Return a byte-level BPE tokenizer that merges across a border wherever it may."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the answer is the end of the question"] * 20, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, clean_up_tokenization_spaces=False)
    made.chat_template = template
    return made


WORDS = words()


def learned(tokens: Tokens, tokenizer: Any = WORDS) -> str:
    return str(tokenizer.decode([each for each, on in zip(*tokens, strict=True) if on]))


def context(tokens: Tokens, tokenizer: Any = WORDS) -> str:
    return str(tokenizer.decode([each for each, on in zip(*tokens, strict=True) if not on]))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def told(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@given(prompt=st.text("the answr", max_size=12), completion=st.text("the answr", max_size=12))
def test_a_prompt_is_tokenized_as_if_alone_and_the_completion_is_learned_with_its_end(
    prompt: str, completion: str
) -> None:
    """What is learned begins where a run would generate, whatever merges across the border would have made."""
    tokens = supervised({"prompt": prompt, "completion": completion}, WORDS)
    alone = WORDS.encode(prompt)

    assert tokens.ids[: len(alone)] == alone
    assert tokens.loss_mask == [False] * len(alone) + [True] * (len(tokens.ids) - len(alone))
    assert learned(tokens) == completion + "<|end|>"


def test_tokens_that_do_not_merge_across_the_border_are_those_of_the_whole_text() -> None:
    """Where nothing lies across, prompt and completion tokenize as one text does."""
    tokens = supervised({"prompt": "the question", "completion": " the answer"}, WORDS)

    assert tokens.ids == [*WORDS.encode("the question the answer"), WORDS.eos_token_id]


def test_an_answer_stands_in_for_a_completion_and_a_text_is_learned_whole() -> None:
    """The rows of a reinforcement learning task can be imitated; of a text only the first token is not learned."""
    assert learned(supervised({"prompt": "the", "answer": "end"}, WORDS)) == "end<|end|>"
    ids, mask = supervised({"text": "the end"}, WORDS)

    assert WORDS.decode(ids) == "the end<|end|>"
    assert mask == [False, *[True] * (len(ids) - 1)]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [user("2 + 2")], "completion": [told("4")]},
        {"prompt": [user("2 + 2")], "completion": "4"},
        {"prompt": "2 + 2", "completion": [told("4")]},
        {"messages": [user("2 + 2"), told("4")]},
        {"messages": [{**user("2 + 2"), "tool_calls": None}, told("4")]},
    ],
)
def test_conversations_in_every_form_become_the_same_tokens(row: dict[str, Any]) -> None:
    """Messages, or text beside messages, go through the chat template; its end marker is learned, its new line not."""
    tokens = supervised(row, WORDS)

    assert context(tokens) == "<|user|>2 + 2<|end|>\n<|assistant|>"
    assert learned(tokens) == "4<|end|>"


def test_every_answer_of_a_conversation_is_learned_or_the_last_alone() -> None:
    """`turns` says which; of a prompt's answers none is."""
    talk = [user("the"), told("end"), user("is"), told("the answer")]

    assert learned(supervised({"messages": talk}, WORDS)) == "end<|end|>the answer<|end|>"
    assert learned(supervised({"messages": talk}, WORDS, FormConfig(turns="last"))) == "the answer<|end|>"
    assert learned(supervised({"prompt": talk[:3], "completion": talk[3:]}, WORDS)) == "the answer<|end|>"


def test_a_template_without_end_marker_gets_the_end_token() -> None:
    """A model trained on answers without an end never stops."""
    tokenizer = words(
        "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }} {% endfor %}"
        + "{{ 'a:' if add_generation_prompt }}"
    )

    assert learned(supervised({"messages": [user("the"), told("end")]}, tokenizer), tokenizer) == "end<|end|>"


def test_the_switch_for_thinking_reaches_the_template() -> None:
    """Off, the empty thoughts are part of what is asked; on, they would be learned; a row may say so for itself."""
    tokenizer, row = words(THINKING), {"prompt": [user("the")], "completion": "end"}
    off = FormConfig(enable_thinking=False)

    assert learned(supervised(row, tokenizer, off), tokenizer) == "end<|end|>"
    assert learned(supervised(row, tokenizer), tokenizer) == "<think></think>end<|end|>"
    own = {**row, "chat_template_kwargs": {"enable_thinking": False}}
    assert learned(supervised(own, tokenizer), tokenizer) == "end<|end|>"
    assert prompt_text({"prompt": [user("the")]}, tokenizer, off).endswith("<|assistant|><think></think>")
    with pytest.raises(DatasetError, match=r"enable_thinking=false has no effect"):
        supervised(row, WORDS, off)


def test_a_template_that_writes_earlier_answers_otherwise_is_refused_with_the_way_out() -> None:
    """Learned in that place, an answer would stand where the model never gives it."""
    talk = {"messages": [user("the"), told("end"), user("is"), told("the answer")]}
    tokenizer = words(THINKING)

    with pytest.raises(DatasetError, match=r"train:7: .* answer 2 .*otherwise") as caught:
        supervised(talk, tokenizer, where="train:7")
    assert caught.value.fix == "learn the last answer alone: turns: last"
    last = supervised(talk, tokenizer, FormConfig(turns="last", enable_thinking=False))
    assert learned(last, tokenizer) == "the answer<|end|>"


PAIRS = [
    {"prompt": "the question", "chosen": " the answer", "rejected": " the end"},
    {"chosen": "Q\n\nAssistant: the answer", "rejected": "Q\n\nAssistant: the end"},
    {"prompt": [user("the")], "chosen": [told("the answer")], "rejected": [told("the end")]},
    {"prompt": [user("the")], "chosen": "the answer", "rejected": "the end"},
    {"chosen": [user("the"), told("the answer")], "rejected": [user("the"), told("the end")]},
]


@pytest.mark.parametrize("row", PAIRS)
def test_a_pair_has_one_prompt_and_two_answers(row: dict[str, Any]) -> None:
    """Words that both answers begin with belong to the answers; the prompt's ids are the same in both."""
    chosen, rejected = preference(row, WORDS)

    assert learned(chosen).strip() == "the answer<|end|>"
    assert learned(rejected).strip() == "the end<|end|>"
    assert context(chosen) == context(rejected) != ""


def test_where_a_prompt_ends_in_text_is_said_or_refused_never_guessed() -> None:
    """The longest shared beginning is no prompt: it may hold the first words of both answers."""
    row = {"chosen": "Q: hi A: the answer", "rejected": "Q: hi A: the end"}

    with pytest.raises(DatasetError, match="row 3: where the prompt ends cannot be told"):
        preference(row, WORDS, where="row 3")
    assert learned(preference(row, WORDS, FormConfig(prompt_ends=" A:")).chosen) == " the answer<|end|>"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "x"}, "row 3: the row lacks columns"),
        ({"prompt": 4, "completion": "x"}, "column 'prompt' is no conversation and no text"),
        ({"prompt": "x", "completion": None}, "column 'completion' is no conversation"),
        ({"messages": [user("x")]}, "does not end with an answer"),
        ({"messages": []}, "column 'messages' is no conversation"),
        ({"prompt": [user("x")], "completion": [user("y")]}, "column 'completion' begins with a message of 'user'"),
        ({"text": 4}, "column 'text' is a int"),
        ({"input_ids": [1, 2]}, "column 'loss_mask' does not fit"),
        ({"input_ids": "ab", "loss_mask": [1, 1]}, "no list of token ids"),
        ({"prompt": [user("x")], "completion": "y", "chat_template_kwargs": 4}, "'chat_template_kwargs' is a int"),
        ({"prompt": "x", "completion": "y", "images": ["a.png"]}, "with images"),
    ],
)
def test_a_row_that_cannot_be_imitated_is_named(row: dict[str, Any], says: str) -> None:
    """What is wrong with which row is the first thing an error says."""
    with pytest.raises(DatasetError, match=says) as caught:
        supervised(row, WORDS, where="row 3")
    assert str(caught.value.what).startswith("row 3")


def test_pairs_that_are_none_are_named() -> None:
    """Rows of other tasks, and pairs without a shared prompt, are refused."""
    with pytest.raises(DatasetError, match="chosen and rejected"):
        preference({"prompt": "x", "completion": "y"}, WORDS)
    with pytest.raises(DatasetError, match="do not begin with the same prompt"):
        preference({"chosen": [user("x"), told("y")], "rejected": [user("z"), told("y")]}, WORDS)


def test_a_tokenizer_that_lacks_something_is_told_of() -> None:
    """No template for messages; no end token for answers."""
    with pytest.raises(DatasetError, match="no chat template"):
        supervised({"messages": [user("x"), told("y")]}, character_tokenizer())
    with pytest.raises(DatasetError, match="no end token"):
        supervised({"prompt": "x", "completion": "y"}, words(end=None))


def test_token_ids_are_taken_as_they_are() -> None:
    """Whoever has tokenized already says what is learned."""
    assert supervised({"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}, WORDS) == ([5, 6, 7], [False, True, True])


def test_a_plain_prompt_is_the_text_that_is_generated_from() -> None:
    """`chat` and `system` put it through the template."""
    assert prompt_text({"prompt": "the"}, WORDS, ChatConfig()) == "the"
    assert prompt_text({"prompt": "the"}, WORDS, ChatConfig(chat=True)) == "<|user|>the<|end|>\n<|assistant|>"
    assert prompt_text({"prompt": "the"}, WORDS, ChatConfig(system="be")).startswith("<|system|>be<|end|>")
