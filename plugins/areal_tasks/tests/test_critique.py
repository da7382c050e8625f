"""Answer, be criticised, answer again: who is asked what, and which tokens are trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, VersionSpan
from areal_core.contract.trajectory import NO_VERSION
from areal_core.contract.workflow import RewardInput, RewardResult, RolloutWorkflow
from areal_tasks.workflows.critique import CritiqueConfig, CritiqueWorkflow
from areal_torch.tokenizers import character_tokenizer

TOKENIZER = character_tokenizer()
TOKENIZER.chat_template = (
    "{% for m in messages %}{{ m['role'][0] }}>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}a>{% endif %}"
).replace("<eos>", TOKENIZER.eos_token)
PLAIN = {"question": "{prompt}-{answer}-w", "again": "{critique}-a>"}


class Talking:
    """A session that gives one answer after another, an adapter's of no version of the policy."""

    image_token_id = None

    def __init__(self, *answers: str) -> None:
        self.task_id, self.group_id = TaskId("train/0/1"), GroupId("train/0/1")
        self.sampling, self.tokenizer = SamplingParams(), TOKENIZER
        self.asked: list[tuple[str, str]] = []
        self.scored: list[RewardInput] = []
        self._answers = list(answers)

    async def generate(
        self, input_ids: Any, sampling: SamplingParams | None = None, *, adapter: str = "", **more: Any
    ) -> Generation:
        text = self._answers[len(self.asked)]
        ids = TOKENIZER.encode(text.removesuffix("..."), add_special_tokens=False)
        cut = text.endswith("...")
        ids += [] if cut else [TOKENIZER.eos_token_id]
        self.asked.append((adapter, TOKENIZER.decode(list(input_ids))))
        spans = (VersionSpan(start=0, stop=len(ids), version=NO_VERSION if adapter else 3),)
        stop = "length" if cut else "stop"
        return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), version_spans=spans, stop_reason=stop)

    async def reward(self, value: RewardInput) -> RewardResult:
        self.scored.append(value)
        return RewardResult(value=0.25, components={"letters": 2.0})


def episode(row: Mapping[str, Any], session: Talking, **config: Any) -> Episode:
    return asyncio.run(CritiqueWorkflow(CritiqueConfig(**config)).arun_episode(session, row))


def text_of(episode: Episode, number: int = 0) -> tuple[str, str]:
    """Return a trajectory's text, and that of the tokens which are trained on."""
    made = episode.trajectories[number]
    return TOKENIZER.decode(made.input_ids.tolist()), TOKENIZER.decode(made.input_ids[made.loss_mask].tolist())


def test_it_is_a_workflow() -> None:
    """It satisfies the contract."""
    assert isinstance(CritiqueWorkflow(), RolloutWorkflow)


def test_an_adapter_criticises_and_the_policy_answers_again() -> None:
    """The critic sees prompt and answer, the policy its words; only the two answers are trained on."""
    session = Talking("uno", "no", "due")
    end, line = TOKENIZER.eos_token, TOKENIZER.unk_token  # this tokenizer has no newline

    made = episode({"prompt": "stone>"}, session, adapter="critic", **PLAIN)

    assert session.asked == [
        ("", "stone>"),
        ("critic", "stone>-uno-w"),
        ("", f"stone>uno{end}{line}no-a>"),
    ]
    assert text_of(made) == (f"stone>uno{end}{line}no-a>due{end}", f"uno{end}due{end}")
    assert len(made.trajectories) == 1 and made.trajectories[0].reward == 0.25
    assert made.metrics == {"letters": 2.0}
    assert [value.completion for value in session.scored] == ["due"] and session.scored[0].prompt == "stone>"


def test_without_an_adapter_the_policy_criticises_and_learns_it() -> None:
    """What it said of itself is a trajectory of the same reward."""
    made = episode({"prompt": "stone>"}, Talking("uno", "no", "due"), **PLAIN)

    assert len(made.trajectories) == 2
    assert text_of(made, 1) == (f"stone>-uno-wno{TOKENIZER.eos_token}", f"no{TOKENIZER.eos_token}")
    assert {trajectory.reward for trajectory in made.trajectories} == {0.25}


def test_a_chat_goes_on_in_the_template_of_the_model() -> None:
    """The answer's own end token stands once, and the critic is asked in a conversation of its own."""
    session = Talking("uno", "no", "due")
    end = TOKENIZER.eos_token

    made = episode({"prompt": "stone"}, session, adapter="critic", chat=True, **PLAIN)

    assert [text for _, text in session.asked] == [
        f"u>stone{end}a>",
        f"u>stone-uno-w{end}a>",
        f"u>stone{end}a>uno{end}u>no-a>{end}a>",
    ]
    assert text_of(made)[1] == f"uno{end}due{end}"


def test_an_answer_that_was_cut_is_ended_by_the_template() -> None:
    """It did not say its end itself; what is said of it does not read as its own words."""
    session = Talking("uno...", "no", "due")
    end = TOKENIZER.eos_token

    made = episode({"prompt": "stone"}, session, adapter="critic", chat=True, **PLAIN)

    assert session.asked[2][1] == f"u>stone{end}a>uno{end}u>no-a>{end}a>"
    assert text_of(made)[1] == f"unodue{end}"


def test_a_row_with_images_is_refused() -> None:
    """The critic would judge an answer about pictures it does not see."""
    with pytest.raises(DatasetError, match="has images"):
        episode({"prompt": "a>", "images": [b""]}, Talking("a"))
