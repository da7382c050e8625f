"""Conversations, tools and an agent with the client of OpenAI are learnt offline, whatever engine the policy runs on.

Held-out greedy reward, before and after some steps of the presets `spell_again` and `sums`, and of the quickstart with
`examples/agents/speller.py`. The first run of a task makes its starting model, which takes minutes; it is kept.
`make test-slow`, and with the environments of the engines `make test-vllm`, `make test-sglang`
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.end_to_end.quickstarts import quickstart, trained

from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import default_registry
from areal_tasks.quickstart.warm_start import RECIPES, warm_start

SPELLER = Path(__file__).resolve().parents[2] / "examples/agents/speller.py"
SERVED = "rollout.options={kv_cache_gib: 0.25}"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
every_engine = pytest.mark.parametrize(
    "engine",
    [
        ("--infer", "reference:d1"),
        pytest.param(("--infer", "vllm:d1", SERVED), marks=pytest.mark.vllm),
        pytest.param(("--infer", "sglang:d1", SERVED), marks=pytest.mark.sglang),
    ],
    ids=["reference", "vllm", "sglang"],
)


@every_engine
def test_a_second_answer_is_learnt_and_then_needed_no_more(tmp_path: Path, engine: tuple[str, ...]) -> None:
    """Who is wrong may try again for half the reward: words are right at once in the end."""
    summary, _ = quickstart(tmp_path / "run", "--model", "spell_again", "--steps", "40", *engine)

    assert summary["eval_first"] < 0.2
    assert summary["eval_last"] >= 0.8
    first, last = turns_and_calls(tmp_path / "run", "episode/turns")
    assert last < first


@every_engine
def test_the_calculator_is_learnt(tmp_path: Path, engine: tuple[str, ...]) -> None:
    """Estimates are wrong, so the policy learns to call the tool and to say what it answered."""
    summary, _ = quickstart(tmp_path / "run", "--model", "sums", "--steps", "24", *engine)

    assert summary["eval_first"] < 0.2
    assert summary["eval_last"] >= 0.8
    first, last = turns_and_calls(tmp_path / "run", "episode/tools/calls")
    assert first < 0.5 < last


@pytest.mark.parametrize(
    ("engine", "parser"),
    [
        pytest.param("vllm", "hermes", marks=pytest.mark.vllm),
        pytest.param("sglang", "qwen25", marks=pytest.mark.sglang),
    ],
)
def test_calls_are_learnt_as_the_engine_reads_them(tmp_path: Path, engine: str, parser: str) -> None:
    """By the parser of its own server, in place of the renderer."""
    options = f"rollout.options={{kv_cache_gib: 0.25, tool_parser: {parser}}}"
    words = ("--infer", f"{engine}:d1", options, "rollout.workflow.options.calls=engine")
    summary, _ = quickstart(tmp_path / "run", "--model", "sums", "--steps", "24", *words)

    assert summary["eval_first"] < 0.2
    assert summary["eval_last"] >= 0.8


@every_engine
def test_an_agent_with_the_client_of_openai_is_learnt(tmp_path: Path, engine: tuple[str, ...]) -> None:
    """The file of the documentation, on the quickstart's task."""
    agent = f"rollout.agent={SPELLER}:run"
    summary, _ = quickstart(tmp_path / "run", "--steps", "40", *engine, agent)

    assert summary["eval_first"] < 0.4
    assert summary["eval_last"] >= 0.8
    assert summary["episodes_failed"] == 0


@every_engine
def test_an_agent_that_calls_a_tool_by_the_chat_api_is_learnt(tmp_path: Path, engine: tuple[str, ...]) -> None:
    """It is shown its tools as the workflow `tools` shows them: this model knows no other way."""
    model = asyncio.run(warm_start(RECIPES["sums"], default_registry(), lambda *_: None))
    infer = f"rollout.backend={engine[1]}", *engine[2:]
    words = f"model.path={model}", "steps=24", "evaluation.before=true", *infer
    summary = trained(tmp_path / "run", "agents/accountant.yaml", *words)

    assert summary["eval_first"] < 0.2
    assert summary["eval_last"] >= 0.8
    assert summary["episodes_failed"] == 0


def turns_and_calls(folder: Path, metric: str) -> tuple[float, float]:
    """Return a metric's mean over the first and over the last five steps."""
    found = [float(line[metric]) for line in read_lines(folder / "metrics.jsonl")]
    return sum(found[:5]) / 5, sum(found[-5:]) / 5
