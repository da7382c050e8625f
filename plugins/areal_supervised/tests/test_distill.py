"""A student comes closer to its teacher on its own answers; each token is rewarded by the teacher's judgement of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.config.schema import RunConfig
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError
from areal_core.contract.train import Head
from areal_core.plugins.extensions import extension
from areal_core.plugins.registry import Registry
from areal_supervised.discounted import Discounted, DiscountedConfig
from areal_tasks.tiny import make_spell_model
from areal_torch.testing.batches import batches

WORDS = ["abc", "bcd", "cde", "def", "efa", "fab", "ace", "bdf"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a student and prompts."""
    folder = tmp_path_factory.mktemp("distill")
    rows = [{"prompt": f"{word}>", "completion": word[::-1]} for word in WORDS] * 8
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    make_spell_model(folder / "student", 1)
    return folder


def teacher(folder: Path) -> str:
    """Fine-tune a teacher from the student, once, and return its folder."""
    made = folder / "taught/checkpoints/step-000060/model"
    if made.is_dir():
        return str(made)
    base = {
        **shared(folder, "student", folder / "taught"),
        "kind": "sft",
        "steps": 60,
        "options": {"batch_size": 16},
        "actor": {"optimizer": {"lr": 5e-3}},
    }
    assert train(load_config(None, (), base), quiet=True) == 0
    return str(made)


def shared(folder: Path, model: str, out: Path) -> dict[str, Any]:
    data = {"name": "jsonl", "options": {"path": str(folder / "rows.jsonl")}}
    return {"model": {"path": str(folder / model)}, "data": data, "out": str(out)}


def distillation(folder: Path, out: Path) -> dict[str, Any]:
    return {
        **shared(folder, "student", out),
        "kind": "distill",
        "steps": 30,
        "options": {"teacher": {"path": str(folder / "student")}},
        "rollout": {"prompts_per_step": 8, "group_size": 8, "sampling": {"max_new_tokens": 6}},
        "actor": {"optimizer": {"lr": 5e-3}},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("top_k", "share"), [(0, 0.75), (8, 0.7)])
def test_the_student_comes_closer_to_its_teacher(folder: Path, tmp_path: Path, top_k: int, share: float) -> None:
    """Judged at the token it drew, and at the teacher's most probable ones."""
    chosen = (f"options.teacher.path={teacher(folder)}", f"options.top_k={top_k}")
    assert train(load_config(None, chosen, distillation(folder, tmp_path / "run")), quiet=True) == 0

    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    distances = [record["train/reference_kl"] for record in records]
    assert len(distances) == 30
    assert sum(distances[-3:]) < share * sum(distances[:3])


def test_a_resolved_run_plans_to_itself(folder: Path, tmp_path: Path) -> None:
    """What `config.yaml` of a run holds goes through planning again when it is resumed."""
    registry = Registry(environ={})
    config = load_config(None, (), distillation(folder, tmp_path / "run"))

    plan = make_plan(config, registry, {})

    assert plan.config.kind == "distill" and plan.config != config
    assert [role.role for role in plan.roles] == ["actor", "reference", "rollout"]
    assert plan.role("reference").head is Head.CAUSAL_LM and plan.warnings == ()
    assert make_plan(plan.config, registry, {}).config == plan.config


def test_a_teacher_is_recorded_as_it_was_pinned(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name on the hub gets its commit while planning; a resume finds the same under both keys."""

    class Pins:
        def pinned(self, config: RunConfig) -> RunConfig:
            if config.reference is None:
                return config
            return attrs.evolve(config, reference=attrs.evolve(config.reference, path=str(folder / "student")))

    (tmp_path / "moving").symlink_to(folder / "student")
    monkeypatch.setattr("areal_core.config.plan.extension", lambda name: Pins() if name == "hub" else extension(name))
    chosen = f"options.teacher.path={tmp_path / 'moving'}"
    config = load_config(None, (chosen,), distillation(folder, tmp_path / "run"))

    plan = make_plan(config, Registry(environ={}), {})

    assert plan.config.reference is not None
    assert plan.config.options["teacher"]["path"] == plan.config.reference.path == str(folder / "student")
    assert make_plan(plan.config, Registry(environ={}), {}).config == plan.config


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("options={}", "options.teacher.path is not set"),
        ("options.teacher={backend: reference:d1}", "options.teacher.path is not set"),
        ("options.discount=2", "discount"),
        ("reference={}", "reference is set, and kind is distill"),
        ("algorithm.advantages.kl.coefficient=0.1", "algorithm.advantages is set, and kind is distill"),
        ("options.teacher.path=/nowhere", "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path, override: str, told: str) -> None:
    base = distillation(folder, tmp_path / "run")
    if override == "options={}":
        base, override = {**base, "options": {}}, "name=x"
    if override.startswith("options.teacher={"):
        base = {**base, "options": {}}
    with pytest.raises(ArealError) as caught:
        make_plan(load_config(None, (override,), base), Registry(environ={}), {})

    assert told in str(caught.value)


@given(batch=batches(), seed=st.integers(0, 99), discount=st.sampled_from([0.0, 0.3, 0.9, 1.0]))
def test_rewards_of_later_tokens_count_by_their_distance(batch: Batch, seed: int, discount: float) -> None:
    """Against a loop from the end of each sequence, over its generated tokens alone."""
    mask = batch.tokens["loss_mask"]
    rewards = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    found = Discounted(DiscountedConfig(discount=discount))(batch, torch.where(mask, rewards, 0.0))

    expected = torch.zeros(batch.num_tokens, dtype=torch.float64)
    for row in range(batch.num_sequences):
        later = 0.0
        for t in range(int(batch.cu_seqlens[row + 1]) - 1, int(batch.cu_seqlens[row]) - 1, -1):
            if mask[t]:
                later = float(rewards[t]) + discount * later
                expected[t] = later
    assert torch.allclose(found, expected)
