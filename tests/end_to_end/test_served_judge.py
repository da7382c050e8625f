"""A judge on a real vLLM or SGLang server that the run starts beside the policy's own.

Needs the environments of the engines. `make test-vllm`, `make test-sglang`
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.end_to_end.live_server import both_engines

from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.observe.jsonl import read_lines
from areal_tasks.tiny import make_spell_model
from areal_tasks.tiny_chat import make_chat_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@both_engines
def test_a_judge_scores_every_answer(tmp_path: Path, engine: str) -> None:
    """What a random model says is noise: a digit in it is the score, and it is asked until there is one."""
    make_spell_model(tmp_path / "policy", 1)
    make_chat_model(tmp_path / "judge", 2)
    words = ["abc", "bcd", "cde", "def"]
    (tmp_path / "rows.jsonl").write_text(
        "\n".join(json.dumps({"prompt": f"{word}>", "answer": word}) for word in words)
    )
    judge = {"path": str(tmp_path / "judge"), "backend": f"{engine}:d1", "options": {"kv_cache_gib": 0.25}}
    options = {"judge": judge, "max_tokens": 48, "temperature": 1.0, "tries": 20, "pattern": r"([0-9])"}
    base = {
        "kind": "judged",
        "out": str(tmp_path / "run"),
        "steps": 2,
        "options": options,
        "model": {"path": str(tmp_path / "policy")},
        "data": {"name": "jsonl", "options": {"path": str(tmp_path / "rows.jsonl")}},
        "rollout": {"prompts_per_step": 4, "group_size": 2, "max_staleness": 0, "sampling": {"max_new_tokens": 6}},
    }

    assert train(load_config(None, (), base), quiet=True) == 0

    steps = list(read_lines(tmp_path / "run/metrics.jsonl"))
    assert len(steps) == 2
    for step in steps:
        assert step["reward"] == pytest.approx(step["episode/judge"]) and 0.0 <= step["reward"] <= 0.9
        assert step["failed"] == 0
