"""A model learns from pictures: rows with images, through vLLM's server and the trainer, to the next weights.

Needs the environment of vLLM. `make test-vllm`
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from areal_core.config.model_folder import load_tokenizer
from areal_torch.testing.models import make_tiny_model

TASK = Path(__file__).with_name("colours.py")
TEMPLATE = (
    "{% for m in messages %}{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}>{% endfor %}"
)
STEPS, LAST = 60, 10
BLIND = 1 / 3
"""The most a policy can earn on average that does not look at the pictures: one of three colours each time."""

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights that takes images, and a chat template that shows them."""
    folder = make_tiny_model(
        tmp_path_factory.mktemp("seeing") / "model", kind="qwen2_5_vl", vocab_size=31, heads=2, head_dim=32
    )
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("train", ["fsdp", "reference"])
def test_a_policy_learns_to_name_what_it_sees(tmp_path: Path, seeing: Path, train: str) -> None:
    """From a guess among all letters to nearly every colour; no policy that sees nothing gets beyond a third."""
    pytest.importorskip(f"areal_{train}")
    steps = _run(tmp_path, seeing, f"{train}:d1")

    rewards = [step["reward"] for step in steps]
    assert len(rewards) == STEPS
    assert mean(rewards[:3]) < BLIND < 0.8 < mean(rewards[-LAST:]), rewards


def _run(folder: Path, model: Path, backend: str) -> list[dict[str, Any]]:
    """Train and return the lines of metrics.jsonl. Any: numbers and small mappings."""
    run = {
        "name": "colours",
        "seed": 1,
        "steps": STEPS,
        "imports": [str(TASK)],
        "out": str(folder / "run"),
        "model": {"path": str(model)},
        "data": {"name": "colours"},
        "rollout": {
            "backend": "vllm:d1",
            "options": {"kv_cache_gib": 0.25},
            "prompts_per_step": 12,
            "group_size": 16,
            "max_staleness": 1,
            "sampling": {"max_new_tokens": 1},
            "reward": {"name": "named"},
        },
        "actor": {"backend": backend, "optimizer": {"lr": 5.0e-4, "weight_decay": 0.0, "max_grad_norm": 1.0}},
        "algorithm": {"advantages": {"reward_norm": {"mean": "group", "std": "group"}}},
        "evaluation": {"before": False},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(run))
    done = subprocess.run(
        [sys.executable, "-m", "areal_core.cli.main", "train", str(file)],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
