"""The workflow `multi_turn`: every answer is trained on as it was generated, and retries cost what they should."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_agentic.conversation import Conversation
from areal_core.contract.errors import DatasetError, GenerationFailed, PromptTooLong, RewardFailed

from .talking import END, OPENS, RENDERER, TOKENIZER, Talking, ids_of, learned, made, whole

_TEXT = st.text("abc >\n", min_size=1, max_size=12)
_IDS = st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=12)


@settings(max_examples=60)
@given(
    answers=st.lists(_TEXT | _IDS, min_size=1, max_size=5),
    rewards=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=5),
    discount=st.sampled_from([1.0, 0.5, 0.9]),
    feedback=_TEXT,
)
def test_every_answer_is_trained_on_once(
    answers: list[Any], rewards: list[float], discount: float, feedback: str
) -> None:
    """Exact tokens, log-probs and versions of any conversation; each request goes on from the tokens before it."""
    session = Talking(*answers, rewards=rewards)
    episode = made("multi_turn", session, max_turns=4, feedback=feedback, turn_discount=discount)

    padded = [*rewards, *[rewards[-1]] * 4][:4]
    turns = next((number for number, reward in enumerate(padded, 1) if reward >= 1.0), 4)
    assert len(session.asked) == len(session.scored) == turns == episode.metrics["turns"]
    assert episode.metrics["judged"] == 1.0
    assert {t.reward for t in episode.trajectories} == {padded[turns - 1] * discount ** (turns - 1)}
    trained = [t.input_ids[t.loss_mask].tolist() for t in episode.trajectories]
    assert sum(map(len, trained)) == sum(map(len, session.said))
    assert sorted(chain(*trained)) == sorted(chain(*session.said))
    for number, (asked, said) in enumerate(zip(session.asked, session.said, strict=True), 1):
        holding = [t for t in episode.trajectories if tuple(t.input_ids[: len(asked + said)].tolist()) == asked + said]
        at = slice(len(asked), len(asked + said))
        assert any(t.loss_mask[at].all() and set(t.versions[at].tolist()) == {number} for t in holding)
        assert all(t.logprobs[at].tolist() == [-number / 64] * len(said) for t in holding if t.loss_mask[at].all())
    if all(isinstance(answer, str) for answer in answers):
        assert len(episode.trajectories) == 1, "an ordinary conversation is one sequence"


def test_a_conversation_reads_as_the_template_writes_it() -> None:
    """Question, answer, feedback with the attempt and a column of the row, answer."""
    session = Talking("a", "b", rewards=(0.0, 0.5, 1.0))
    row = {"prompt": "ab>", "hint": "short"}
    episode = made("multi_turn", session, row, feedback="try {attempt}, {hint}, {other}", turn_discount=0.5)

    (trajectory,) = episode.trajectories
    asked = f"<|im_start|>user\nab>{END}\n{OPENS}"
    told = [f"\n<|im_start|>user\ntry {n}, short, {{other}}{END}\n{OPENS}" for n in (1, 2)]
    assert whole(trajectory).partition(END + "\n")[2] == f"{asked}a{END}{told[0]}b{END}{told[1]}b{END}"
    assert learned(trajectory) == f"a{END}b{END}b{END}"
    assert trajectory.reward == 0.25
    assert [value.completion for value in session.scored] == ["a", "b", "b"]
    assert {value.prompt for value in session.scored} == {"ab>"}
    said = [("user", "ab>"), ("assistant", "a"), ("user", "try 1, short, {other}")]
    messages = [{"role": role, "content": text} for role, text in said]
    assert session.asked[1] == tuple(RENDERER.render(messages))


def test_a_conversation_may_be_given_and_a_system_message_put_before_it() -> None:
    """Rows with messages; a base model without a template has them one after the other."""
    said = [("user", "ab"), ("assistant", "x"), ("user", "cd")]
    row = {"messages": [{"role": role, "content": text} for role, text in said]}
    session = Talking("a")
    made("multi_turn", session, row, system="Be kind.")
    plain = Talking("a", "b", rewards=(0.0, 1.0))
    episode = made("multi_turn", plain, renderer="plain", renderer_options={}, feedback="no>")

    text = TOKENIZER.decode(list(session.asked[0]))
    assert text.startswith(f"<|im_start|>system\nBe kind.{END}") and text.endswith(f"user\ncd{END}\n{OPENS}")
    assert session.scored[0].prompt == text
    assert whole(episode.trajectories[0]) == f"ab>a{END}no>b{END}"


def test_a_full_context_ends_the_conversation() -> None:
    """What was answered counts, and no retry was made; a first question that does not fit fails."""
    full = PromptTooLong("no room", why="a test")
    episode = made("multi_turn", Talking("a", full, rewards=(0.5,)), turn_discount=0.5)

    assert [learned(t) for t in episode.trajectories] == [f"a{END}"]
    assert episode.trajectories[0].reward == 0.5 and episode.metrics["turns"] == 1.0
    with pytest.raises(PromptTooLong):
        made("multi_turn", Talking(full))


@pytest.mark.parametrize("row", [{}, {"question": "ab"}, {"prompt": None}, {"messages": "ab"}])
def test_a_row_without_a_question_is_refused(row: dict[str, Any]) -> None:
    """By name, before anything is asked."""
    with pytest.raises(DatasetError, match="the row of train/0/1"):
        made("multi_turn", session := Talking("a"), {**row, "answer": "x"})
    assert not session.asked


def test_failures_are_no_rewards() -> None:
    """Of the fleet and of the reward function."""
    with pytest.raises(GenerationFailed):
        made("multi_turn", Talking("a", GenerationFailed("lost"), rewards=(0.0,)))
    with pytest.raises(RewardFailed, match="episode train/0/1"):
        made("multi_turn", Talking("a", rewards=(None,)))  # type: ignore[arg-type]


class Forgetful:
    """A renderer that finds no bridge: thoughts that its template leaves out later."""

    stop_token_ids = frozenset({int(TOKENIZER.eos_token_id)})

    def __init__(self) -> None:
        self.render, self.parse = RENDERER.render, RENDERER.parse

    def bridge(self, history: Any, output_ids: Any, messages: Any, *, keep_thoughts: bool = False, **_: Any) -> Any:
        bridge = RENDERER.bridge(history, output_ids, messages)
        return bridge if keep_thoughts or b"?" not in str(messages).encode() else None


@pytest.mark.parametrize("keep", [False, True])
def test_where_there_is_no_bridge_another_trajectory_begins(keep: bool) -> None:
    """The history is rendered anew, and what was said stays trained on as it was asked."""
    odd = [*ids_of("<|im_start|>x"), TOKENIZER.eos_token_id]
    talk = Conversation(session := Talking("a", odd, "c"), Forgetful(), [{"role": "user", "content": "q"}],
                        keep_thoughts=keep)  # fmt: skip

    async def run() -> None:
        await talk.ask()
        talk.say({"role": "user", "content": "on"})
        await talk.ask()
        talk.say({"role": "user", "content": "on?"})
        await talk.ask()

    asyncio.run(run())
    found = talk.trajectories(1.0)

    assert len(found) == (1 if keep else 2)
    assert sum(int(t.loss_mask.sum()) for t in found) == sum(map(len, session.said))
    assert session.asked[2] + session.said[2] in [tuple(t.input_ids.tolist()) for t in found]
    counted = {"agent/requests": 3.0, "agent/trajectories": float(len(found)), "agent/restarted": 0.0 if keep else 1.0}
    assert dict(talk.metrics) == counted
    assert talk.num_answers == 3 and not talk.full and {t.reward for t in found} == {1.0}
