"""A judge that is a role of the run: planned, started and asked like any fleet; its score is the reward."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file

from areal_config.plan_text import describe_plan
from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.clock import SystemClock
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError, PlanError
from areal_core.contract.inference import Generation, GenerationRequest, Timings, VersionSpan
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.fleet.pool import InferencePool
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import Registry
from areal_core.testing.engines import ScriptedEngine, ScriptedWorker
from areal_supervised.fleet import FleetConfig
from areal_supervised.judge_fleet import JudgedRewards, JudgeFleet
from areal_supervised.judged_config import JudgedConfig
from areal_tasks.preview import preview
from areal_tasks.tiny import make_spell_model
from areal_tasks.tiny_chat import chat_tokenizer, make_chat_model

VALUE = RewardInput(prompt="2+2=", completion="4", completion_ids=(1,), stop_reason="stop", row={"answer": "4"})


def make_judge(folder: Path) -> Path:
    """Write a model that says nothing but 7: its normalised state has one direction, and 7 most of it."""
    path = make_chat_model(folder, 3)
    file = path / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] = torch.zeros(64)
    weights["model.norm.weight"][0] = 100.0
    embedding = weights["model.embed_tokens.weight"]
    embedding[:, 0] = 1.0
    embedding[chat_tokenizer().convert_tokens_to_ids("7"), 0] = 3.0
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    save_file(weights, file, metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, a judge of other tokens, and prompts."""
    folder = tmp_path_factory.mktemp("judged")
    make_spell_model(folder / "policy", 1)
    make_judge(folder / "judge")
    words = ["abc", "bcd", "cde", "def", "efa", "fab", "ace", "bdf"]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"{word}>", "answer": word}) for word in words))
    return folder


def judged(folder: Path, out: Path) -> dict[str, Any]:
    options = {"judge": {"path": str(folder / "judge"), "backend": "reference:d2"}, "max_tokens": 2, "pattern": r"(\d)"}
    return {
        "kind": "judged",
        "out": str(out),
        "steps": 2,
        "options": options,
        "model": {"path": str(folder / "policy")},
        "data": {"name": "jsonl", "options": {"path": str(folder / "rows.jsonl")}},
        "rollout": {"prompts_per_step": 4, "group_size": 2, "max_staleness": 0, "sampling": {"max_new_tokens": 6}},
        "actor": {"optimizer": {"lr": 5e-3}},
    }


def test_the_judge_is_a_role_of_the_plan(folder: Path, tmp_path: Path) -> None:
    """With its replicas, of a vocabulary of its own; what `config.yaml` holds goes through planning again."""
    registry = Registry(environ={})

    plan = make_plan(load_config(None, (), judged(folder, tmp_path)), registry, {})

    assert [(role.role, role.engine_role, role.num_workers) for role in plan.roles] == [
        ("actor", "train", 1),
        ("judge", "infer", 2),
        ("rollout", "infer", 1),
    ]
    assert "judge    reference:d2" in describe_plan(plan)
    again = make_plan(plan.config, registry, {})
    assert again.config == plan.config and again.roles == plan.roles


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["options={}"], "options.judge"),
        (["options.judge.path=/nowhere"], "/nowhere"),
        (["options.judge.backend=nobody:d1"], "nobody"),
        (["options.judge.options={colour: red}"], "options.judge.options.colour"),
        (["options.judge.options={url: 'http://127.0.0.1:1'}"], "options.judge.options.url is set"),
        (["options.renderer_options={colour: red}"], "options.renderer_options.colour"),
        (["options.renderer=nobody"], "nobody"),
        (["options.pattern='no group'"], "has no group"),
        (["options.tries=0"], "tries"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path, overrides: list[str], told: str) -> None:
    """While planning."""
    base = judged(folder, tmp_path)
    if overrides == ["options={}"]:
        base["options"], overrides = {}, []
    with pytest.raises(ArealError) as caught:
        make_plan(load_config(None, tuple(overrides), base), Registry(environ={}), {})

    assert told in str(caught.value)


def test_a_column_that_the_question_names_is_looked_for(folder: Path, tmp_path: Path) -> None:
    """By a dry run, in the first row."""
    base = judged(folder, tmp_path)
    base["options"]["question"] = "Is {completion} as good as {reference}?"
    registry = Registry(environ={})
    plan = make_plan(load_config(None, (), base), registry, {})

    with pytest.raises(PlanError, match="has no column 'reference'") as caught:
        preview(plan, registry)

    assert "options" in str(caught.value.fix)


class Saying(ScriptedEngine):
    """Says what it is told to, one answer after another."""

    def __init__(self, *says: str) -> None:
        super().__init__(SystemClock())
        self._says, self._tokenizer = list(says), chat_tokenizer()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Say the next one."""
        self.requests.append(request)
        ids = (*self._tokenizer.encode(self._says.pop(0)), *request.sampling.stop_token_ids[:1])
        spans = (VersionSpan(start=0, stop=len(ids), version=0),)
        logprobs = (-0.5,) * len(ids)
        return Generation(
            output_ids=ids, logprobs=logprobs, version_spans=spans, stop_reason=StopReason.STOP, timings=Timings()
        )


class Own:
    """The run's own reward: satisfies `RewardPool`."""

    def __init__(self, result: RewardResult) -> None:
        self._result = result

    async def start(self) -> None:
        """Start nothing."""

    async def score(self, value: RewardInput) -> RewardResult:
        """Return what it was made with."""
        return self._result

    async def close(self) -> None:
        """Close nothing."""


def scored(folder: Path, engine: ScriptedEngine, own: RewardResult | None = None, **options: Any) -> RewardResult:
    """Return what becomes of the judge's words."""

    async def go() -> RewardResult:
        async def start_pool() -> InferencePool:
            return InferencePool([ScriptedWorker(engine, clock=SystemClock())])

        config = JudgedConfig(judge=FleetConfig(path="judge"), **options)
        fleet = JudgeFleet(config, folder / "judge", start_pool=start_pool, seed=0)
        rewards = JudgedRewards(fleet, None if own is None else Own(own), weight=config.weight)
        await rewards.start()
        return await rewards.score(VALUE)

    return evolve(asyncio.run(go()), seconds=0.0)


def test_the_score_is_the_reward(folder: Path) -> None:
    """The question is asked in the judge's own tokens, and greedily; the last match counts."""
    engine = Saying("Score: 1 at first. Score: 8")

    result = scored(folder, engine, weight=0.5, question="Is {completion} {answer}?")

    assert (result.value, result.components) == (0.4, {"judge": 0.8, "judge_characters": 27.0})
    (request,) = engine.requests
    asked = chat_tokenizer().decode(request.input_ids)
    assert "<|im_start|>user\nIs 4 4?<|im_end|>" in asked and asked.endswith("<|im_start|>assistant\n")
    assert request.sampling.temperature == 0.0


def test_it_is_added_to_the_own_reward(folder: Path) -> None:
    """With the parts of both."""
    own = RewardResult(value=1.0, components={"right": 1.0})

    result = scored(folder, Saying("Score: 5"), own, weight=0.2)

    assert result.value == pytest.approx(1.1)
    assert result.components == {"right": 1.0, "judge": 0.5, "judge_characters": 8.0}


def test_a_judge_without_a_score_is_no_zero(folder: Path) -> None:
    """It is asked as often as `tries` says; the last words are told."""
    patient = scored(folder, Saying("Hm.", "Score: 3"), tries=2)
    result = scored(folder, Saying("Hm.", "Well, it is good."), tries=2)

    assert patient.value == 0.3
    assert (result.value, result.status) == (None, RewardStatus.RAISED) and "Well, it is good." in result.detail


def test_what_cannot_be_asked_is_told(folder: Path) -> None:
    """A column that this row lacks, and the own reward's failure before the judge's word."""
    missing = scored(folder, Saying("Score: 3"), question="{reference}?")
    failed = scored(folder, Saying("Score: 3"), RewardResult(value=None, status=RewardStatus.TIMEOUT))

    assert (missing.value, missing.status) == (None, RewardStatus.RAISED) and "'reference'" in missing.detail
    assert failed.status == RewardStatus.TIMEOUT


@pytest.mark.slow
def test_a_run_is_judged(folder: Path, tmp_path: Path) -> None:
    """By two replicas; the score is among the metrics; the run resumes."""
    overrides = ("rollout.reward.name=exact_match", "options.weight=0.5", "steps=1")
    assert train(load_config(None, overrides, judged(folder, tmp_path / "run")), quiet=True) == 0
    assert train(load_config(tmp_path / "run/config.yaml", ("steps=2",)), resume=True, quiet=True) == 0

    steps = list(read_lines(tmp_path / "run/metrics.jsonl"))
    assert len(steps) == 2
    for step in steps:
        assert step["episode/judge"] == pytest.approx(0.7)
        assert step["reward"] == pytest.approx(0.35), "no word of six letters is the right one of three"
