"""A teacher that is a second fleet judges as the same teacher does as a training role."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define, evolve, field

from areal_config.plan_text import describe_plan
from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import ArealError
from areal_core.contract.train import Output
from areal_core.plugins.claims import unsupported
from areal_core.plugins.registry import Registry
from areal_episodes.replay import replay
from areal_supervised.scoring_teacher import ScoringTeacher
from areal_tasks.tiny import make_spell_model
from areal_torch.testing.batches import make_batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a teacher and prompts."""
    folder = tmp_path_factory.mktemp("scorer")
    make_spell_model(folder / "student", 1)
    make_spell_model(folder / "teacher", 2)
    words = ["abc", "bcd", "cde", "def", "efa", "fab", "ace", "bdf"]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"{word}>", "answer": word}) for word in words))
    return folder


def distillation(folder: Path, out: Path, **options: Any) -> dict[str, Any]:
    return {
        "kind": "distill",
        "out": str(out),
        "steps": 3,
        "options": options or {"scorer": {"path": str(folder / "teacher"), "backend": "reference:d2"}},
        "model": {"path": str(folder / "student")},
        "data": {"name": "jsonl", "options": {"path": str(folder / "rows.jsonl")}},
        "deterministic": True,
        "rollout": {
            "prompts_per_step": 4,
            "group_size": 2,
            "max_staleness": 0,
            "sampling": {"max_new_tokens": 6, "temperature": 0.8},
        },
        "actor": {"optimizer": {"lr": 5e-3}},
    }


def test_the_fleet_is_a_role_of_the_plan(folder: Path, tmp_path: Path) -> None:
    """With its devices and memory; what `config.yaml` holds goes through planning again."""
    registry = Registry(environ={})

    plan = make_plan(load_config(None, (), distillation(folder, tmp_path)), registry, {})

    assert [(role.role, role.engine_role, role.num_workers) for role in plan.roles] == [
        ("actor", "train", 1),
        ("teacher", "infer", 2),
        ("rollout", "infer", 1),
    ]
    assert "teacher  reference:d2" in describe_plan(plan)
    again = make_plan(plan.config, registry, {})
    assert again.config == plan.config and again.roles == plan.roles


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["options.teacher.path=x"], "options.teacher and options.scorer are set"),
        (["options.scorer.path=/nowhere"], "/nowhere"),
        (["options.scorer.backend=nobody:d1"], "nobody"),
        (["options.scorer.backend=reference:t2"], "parallel.tensor"),
        (["options.scorer.options={colour: red}"], "options.scorer.options.colour"),
        (["options.scorer.options={url: 'http://127.0.0.1:1'}"], "options.scorer.options.url is set"),
        (["options.top_k=4"], "options.scorer and options.top_k are set"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path, overrides: list[str], told: str) -> None:
    """While planning."""
    with pytest.raises(ArealError) as caught:
        make_plan(load_config(None, tuple(overrides), distillation(folder, tmp_path)), Registry(environ={}), {})

    assert told in str(caught.value)


def test_an_engine_that_cannot_score_is_refused(folder: Path, tmp_path: Path) -> None:
    """By name, with those that can."""
    registry = Registry(environ={})
    manifest = registry.describe("infer", "reference")
    mute = evolve(manifest, claims={**manifest.claims, "scoring": unsupported("no scores")})
    entries = {("infer", "reference"): (mute, registry.load("infer", "reference"))}
    with registry.overlay(entries) as other, pytest.raises(ArealError) as caught:
        make_plan(load_config(None, (), distillation(folder, tmp_path)), other, {})

    assert "'reference' cannot do 'scoring'" in str(caught.value) and "vllm" in str(caught.value.fix)


def test_a_machine_that_is_not_here_may_have_the_engines_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--assume` asks for none here, neither of the student's engine nor of the teacher's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    base = distillation(folder, tmp_path / "run", scorer={"path": str(folder / "teacher"), "backend": "vllm:d2"})
    config = load_config(None, ("rollout.backend=vllm:d1", "deterministic=false"), base)

    plan = make_plan(config, Registry(environ={}), {"cuda": 4}, installed=False)

    assert [role.backend.name for role in plan.roles] == ["reference", "vllm", "vllm"]
    with pytest.raises(ArealError, match="vllm"):
        make_plan(config, Registry(environ={}), {"cuda": 4})


@define
class Replica:
    """Scores a token by its id and its place, and notes who asked at once."""

    asked: Counter[int] = field(factory=Counter)
    busy: int = 0
    most: int = 0

    async def call(self, method: str, ids: list[int], temperature: float, *, timeout_s: float) -> list[float]:
        assert (method, temperature) == ("score", 0.7)
        self.busy += 1
        self.most = max(self.most, self.busy)
        await asyncio.sleep(0)
        self.busy -= 1
        self.asked[len(ids)] += 1
        return [float(token * 100 + place) for place, token in enumerate(ids)]


def test_every_sequence_is_asked_about_once() -> None:
    """Over all replicas, no more at once than each may take; answers come back to their tokens."""
    batch = make_batch([(2, 3), (1, 5), (4, 9), (1, 1), (3, 3), (2, 2), (5, 1)])
    replicas = [Replica(), Replica()]
    teacher = ScoringTeacher(replicas, 0.7, concurrency=2, timeout_s=1.0)  # type: ignore[arg-type]

    found = asyncio.run(teacher.forward(batch, Output.LOGPROBS))

    assert torch.equal(found, (batch.tokens["input_ids"] * 100 + batch.positions).float())
    assert replicas[0].asked + replicas[1].asked == Counter(batch.lengths.tolist())
    assert [replica.most for replica in replicas] == [2, 2]


@pytest.mark.slow
def test_a_fleet_teaches_what_the_role_teaches(folder: Path, tmp_path: Path) -> None:
    """Three synchronous steps at a temperature of 0.8, two replicas: the same distance, the same loss."""
    told = {}
    for name, options in {"role": {"teacher": {"path": str(folder / "teacher")}}, "fleet": {}}.items():
        base = distillation(folder, tmp_path / name, **options)
        assert train(load_config(None, (), base), quiet=True) == 0
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        told[name] = [(json.loads(line)["train/reference_kl"], json.loads(line)["loss"]) for line in lines]

    assert len(told["role"]) == 3
    for role, fleet in zip(told["role"], told["fleet"], strict=True):
        assert fleet == pytest.approx(role, abs=1e-4)
    again = replay(tmp_path / "role", out=tmp_path / "again")
    assert again.finished and again.divergence is None
    with pytest.raises(ArealError, match="cannot be replayed"):
        replay(tmp_path / "fleet", out=tmp_path / "never")


@pytest.mark.slow
def test_a_run_with_a_fleet_resumes(folder: Path, tmp_path: Path) -> None:
    """From its checkpoint, to more steps."""
    base = distillation(folder, tmp_path / "run")
    assert train(load_config(None, (), base), quiet=True) == 0

    assert train(load_config(tmp_path / "run/config.yaml", ("steps=5",)), resume=True, quiet=True) == 0

    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]
