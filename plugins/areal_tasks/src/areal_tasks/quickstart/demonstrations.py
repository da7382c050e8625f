"""What a sloppy annotator shows the starting models, task by task: mostly the wrong way, sometimes the right one.

Knows: rows, and what is said to them.
Does not know: how a model is fine-tuned on it (`warm_start`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve

from areal_tasks.datasets.chain_sum import ChainSumConfig, chain_sum
from areal_tasks.datasets.rows import Row
from areal_tasks.datasets.spell import SpellConfig, demonstration, long_spell, spell
from areal_tasks.sft import Demonstration
from areal_tasks.tiny_chat import CALCULATOR, WORDS

FEEDBACK = "no, again>"
"""What `spell_again` says to a wrong answer."""
TERMS, DIGITS = 3, 2
"""Of a sum in `sums`: too much for so small a model to do without the calculator."""
CALLING_SHARE = 0.15
"""How many sums the annotator has the calculator do; the others are estimated."""
LETTERS = 7
"""Of a word in `spell_again` at most."""
FORGETFUL_SHARE = 0.7
"""How many second answers of `spell_again` forget the last letter too."""
_WORD, _WRONG, _RESULT = "@", "`", "~"
"""Stand for what differs from row to row in a conversation that is rendered once."""
_SIZE = 100_000_000

Show = Callable[[int, random.Random], list[Demonstration]]
"""Row number and randomness to what is shown of the row."""


def show(task: str, seed: int, tokenizer: Any) -> Show:
    """Return what is shown of a task's rows, those of the training split of a seed. Any: a Hugging Face tokenizer."""
    return _TASKS[task](seed, tokenizer)


def _spelled(rows: Callable[[SpellConfig], Sequence[Row]], seed: int, tokenizer: Any) -> Show:
    found = rows(SpellConfig(seed=seed, size=_SIZE))
    return lambda index, rng: [_shown(tokenizer, found[index]["prompt"], demonstration(found[index], rng))]


def _spelled_again(seed: int, tokenizer: Any) -> Show:
    """Show an answer that mostly lacks its last letter; of every second row also one to the feedback."""
    found = spell(SpellConfig(seed=seed, size=_SIZE, max_word_len=LETTERS))
    talk = [_said("user", _WORD), _said("assistant", _WRONG), _said("user", FEEDBACK)]
    first, second = _rendered(tokenizer, talk[:1]), _rendered(tokenizer, talk)

    def made(index: int, rng: random.Random) -> list[Demonstration]:
        row = found[index]
        word, answer = row["prompt"], row["answer"]
        shown = [_shown(tokenizer, first.replace(_WORD, word), demonstration(row, rng))]
        if index % 2:
            again = answer[:-1] if rng.random() < FORGETFUL_SHARE else answer
            shown.append(_shown(tokenizer, second.replace(_WORD, word).replace(_WRONG, answer[:-1]), again))
        return shown

    return made


def _summed(seed: int, tokenizer: Any) -> Show:
    """Show an estimate, sometimes a call of the calculator; and how a call that was begun goes on, and is read."""
    config = ChainSumConfig(seed=seed, size=_SIZE, examples="", min_terms=TERMS, max_terms=TERMS)
    found = chain_sum(evolve(config, min_digits=DIGITS, max_digits=DIGITS))
    call = {"name": "calculator", "arguments": {"expression": _WORD}}
    calling = {**_said("assistant", ""), "tool_calls": [{"type": "function", "function": call}]}
    talk = [_said("user", f"{_WORD} ="), calling, _said("tool", _RESULT)]
    first, second = _rendered(tokenizer, talk[:1], CALCULATOR), _rendered(tokenizer, talk, CALCULATOR)
    called = second.removeprefix(first).partition(tokenizer.eos_token)[0]
    begun = len(WORDS[0])

    def made(index: int, rng: random.Random) -> list[Demonstration]:
        expression, result = found[index]["entry"]["metadata"]["expression"], found[index]["answer"]
        asked, calls = (text.replace(_WORD, expression) for text in (first, called))
        answer = calls if rng.random() < CALLING_SHARE else f"about {round(int(result), -1)}"
        return [
            _shown(tokenizer, asked, answer),
            _shown(tokenizer, asked + calls[:begun], calls[begun:]),
            _shown(tokenizer, second.replace(_WORD, expression).replace(_RESULT, result), result),
        ]

    return made


_TASKS: Mapping[str, Callable[[int, Any], Show]] = {
    "spell": partial(_spelled, spell),
    "long_spell": partial(_spelled, long_spell),
    "spell_again": _spelled_again,
    "sums": _summed,
}


def _shown(tokenizer: Any, prompt: str, answer: str) -> Demonstration:
    prompt_ids, answer_ids = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt, answer))
    return Demonstration(prompt_ids=prompt_ids, answer_ids=[*answer_ids, tokenizer.eos_token_id])


def _said(role: str, content: str) -> dict[str, Any]:  # Any: JSON
    return {"role": role, "content": content}


def _rendered(tokenizer: Any, talk: Sequence[Mapping[str, Any]], *tools: Mapping[str, Any]) -> str:
    text: str = tokenizer.apply_chat_template(
        list(talk), tools=list(tools) or None, tokenize=False, add_generation_prompt=True
    )
    return text
