"""The KL over the teacher's most probable tokens: a law of distributions, its gradient, and TRL's own loss of it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import ArealError
from areal_core.contract.train import CANDIDATES, Output
from areal_core.plugins.registry import Registry
from areal_supervised.divergence import LEAST, TEACHER, DivergenceObjective, divergence, judged
from areal_tasks.tiny import make_spell_model
from areal_torch.testing.batches import make_batch

WORDS = ["abc", "bcd", "cde", "def", "efa", "fab", "ace", "bdf"]
VOCABULARY = 31


def drawn(seed: int, vocabulary: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs [5, V] of a student and a teacher, float64."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (2 * torch.randn(5, vocabulary, generator=generator, dtype=torch.float64) for _ in range(2))
    return student.log_softmax(-1), teacher.log_softmax(-1)


def of_top(student: torch.Tensor, teacher: torch.Tensor, count: int) -> torch.Tensor:
    ids = teacher.topk(count).indices
    return divergence(student.gather(1, ids), teacher.gather(1, ids))


@given(seed=st.integers(0, 200))
def test_more_tokens_tell_more_up_to_the_whole_kl(seed: int) -> None:
    """It grows with k (data-processing inequality), is never negative, and with every token it is the KL."""
    student, teacher = drawn(seed)
    whole = (student.exp() * (student - teacher)).sum(-1)

    found = [of_top(student, teacher, count) for count in range(1, 10)]

    assert all(bool((later >= earlier - 1e-5).all()) for earlier, later in itertools.pairwise(found))
    assert bool((found[0] >= 0).all())
    assert torch.allclose(found[-1], whole, atol=1e-5)
    assert torch.allclose(of_top(teacher, teacher, 3), torch.zeros(5, dtype=torch.float64))


@given(seed=st.integers(0, 200), count=st.integers(1, 9))
def test_its_gradient_is_that_of_all_logits(seed: int, count: int) -> None:
    """Against finite differences in float64, through the student's softmax."""
    _, teacher = drawn(seed)
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    ids = teacher.topk(count).indices
    left = 1.0 - logits.log_softmax(-1).exp().gather(1, ids).sum(-1)
    if count < 9 and bool((left < 10 * LEAST).any()):
        return

    def distance(found: torch.Tensor) -> torch.Tensor:
        return divergence(found.log_softmax(-1).gather(1, ids), teacher.gather(1, ids)).sum()

    assert torch.autograd.gradcheck(distance, (logits.requires_grad_(),), atol=1e-4)


@given(seed=st.integers(0, 50))
def test_the_loss_is_a_mean_over_generated_tokens(seed: int) -> None:
    """However the batch is cut (law 6); what stands off the mask, nan too, has no part."""
    batch = make_batch([(2, 3), (1, 5), (3, 1)], seed=seed)
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (torch.randn(batch.num_tokens, 9, generator=generator).log_softmax(-1) for _ in range(2))
    ids = teacher.topk(4).indices
    where = judged(batch)
    told = torch.where(where[:, None], teacher.gather(1, ids), torch.nan)
    batch = batch.with_tokens(**{CANDIDATES: ids.to(torch.int32), TEACHER: told, "student": student.gather(1, ids)})
    objective = DivergenceObjective()
    size = objective.normalizer(batch)

    def share(rows: list[int]) -> torch.Tensor:
        part = batch.select(rows)
        loss, metrics = objective.loss({Output.CANDIDATE_LOGPROBS: part.tokens["student"]}, part, size)
        assert metrics["reference_kl"].weight == float(judged(part).sum())
        return loss

    whole = share([0, 1, 2])
    assert torch.allclose(whole, divergence(student.gather(1, ids), teacher.gather(1, ids))[where].mean(), atol=1e-5)
    assert torch.allclose(share([0]) + share([2, 1]), whole, atol=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a teacher and prompts."""
    folder = tmp_path_factory.mktemp("top-k")
    make_spell_model(folder / "student", 1)
    make_spell_model(folder / "teacher", 2)
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"{word}>", "answer": word}) for word in WORDS))
    return folder


def distillation(folder: Path, out: Path, **options: Any) -> dict[str, Any]:
    return {
        "kind": "distill",
        "out": str(out),
        "steps": 20,
        "options": {"teacher": {"path": str(folder / "teacher")}, "top_k": 8, **options},
        "model": {"path": str(folder / "student")},
        "data": {"name": "jsonl", "options": {"path": str(folder / "rows.jsonl")}},
        "rollout": {"prompts_per_step": 4, "group_size": 2, "max_staleness": 0, "sampling": {"max_new_tokens": 6}},
        "actor": {"optimizer": {"lr": 5e-3, "weight_decay": 0.0}},
    }


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["options.discount=0.5"], "options.top_k and options.discount are set"),
        (["algorithm.minibatches=2"], "algorithm.minibatches is set and options.top_k is too"),
        (["algorithm.preset=dapo"], "algorithm.preset is set and options.top_k is too"),
        (["options.top_k=32"], "vocabulary has 31 entries"),
        (["actor.backend=archon:d1"], "'archon' cannot do 'candidates'"),
        (["options.teacher.backend=megatron:d1"], "'megatron' cannot do 'candidates'"),
        (["options.top_k=-1"], "top_k"),
        (["critic={}"], "critic is set, and kind is distill"),
        (["episodes.ratios=true"], "episodes.ratios and options.top_k are set"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path, overrides: list[str], told: str) -> None:
    """While planning."""
    with pytest.raises(ArealError) as caught:
        make_plan(load_config(None, tuple(overrides), distillation(folder, tmp_path)), Registry(environ={}), {})

    assert told in str(caught.value)


def test_a_resolved_run_plans_to_itself(folder: Path, tmp_path: Path) -> None:
    """What `config.yaml` holds goes through planning again."""
    registry = Registry(environ={})

    plan = make_plan(load_config(None, (), distillation(folder, tmp_path)), registry, {})

    assert plan.objective.name == "teacher_kl" and plan.warnings == ()
    assert [role.role for role in plan.roles] == ["actor", "reference", "rollout"]
    again = make_plan(plan.config, registry, {})
    assert again.config == plan.config and again.objective == plan.objective


@pytest.mark.slow
def test_twenty_steps_are_those_of_trl(folder: Path, tmp_path: Path) -> None:
    """On the answers this run sampled, TRL's distillation by the reverse KL has the same losses within 1e-4.

    With every token of the vocabulary in `top_k` the two minimise the same; so each step begins at the same weights.
    """
    base = distillation(folder, tmp_path / "run", top_k=VOCABULARY)
    assert train(load_config(None, (), base), quiet=True) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    settings = {"learning_rate": 5e-3, "weight_decay": 0.0, "max_grad_norm": 1.0, "steps": 20}

    script = Path(__file__).with_name("trl_distillation.py")
    arguments = [folder / "student", folder / "teacher", tmp_path / "run", json.dumps(settings)]
    done = subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])

    assert len(theirs) == len(losses) == 20
    assert losses == pytest.approx(theirs, abs=1e-4)
    assert losses[-1] < 0.9 * losses[0]
