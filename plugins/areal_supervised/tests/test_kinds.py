"""A run on rows is planned without an engine that generates; keys that nobody would read are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from areal_config.plan_text import describe_plan
from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import ArealError
from areal_core.contract.train import Head
from areal_core.plugins.registry import Registry
from areal_tasks.tiny import make_spell_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    rows = [{"prompt": "ab>", "completion": "ba", "chosen": "ba", "rejected": "ab"}] * 10
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return make_spell_model(folder / "m", 1)


def planned(model: Path, kind: str, *overrides: str) -> Plan:
    base: dict[str, Any] = {
        "kind": kind,
        "model": {"path": str(model)},
        "data": {"name": "jsonl", "options": {"path": str(model.parent / "rows.jsonl")}},
    }
    return make_plan(load_config(None, overrides, base), Registry(environ={}), {})


@pytest.mark.parametrize(
    ("kind", "roles", "head", "objective"),
    [
        ("sft", ["actor"], Head.CAUSAL_LM, "sft"),
        ("dpo", ["actor", "reference"], Head.CAUSAL_LM, "linear"),
        ("ipo", ["actor", "reference"], Head.CAUSAL_LM, "linear"),
        ("reward_model", ["actor"], Head.VALUE, "linear"),
    ],
)
def test_a_kind_has_the_roles_it_needs(model: Path, kind: str, roles: list[str], head: Head, objective: str) -> None:
    plan = planned(model, kind)

    assert [role.role for role in plan.roles] == roles
    assert plan.role("actor").head is head
    assert plan.objective.name == objective
    assert plan.transports == ()
    assert f"100 steps of kind {kind}" in describe_plan(plan)


def test_the_reference_model_starts_where_the_actor_starts_without_its_adapter(model: Path) -> None:
    plan = planned(
        model, "dpo", "actor.lora={rank: 4, alpha: 8, targets: [q_proj]}", "actor.max_tokens_per_microbatch=512"
    )

    assert plan.config.reference is not None
    assert plan.config.reference.lora is None
    assert plan.config.reference.max_tokens_per_microbatch == 512
    assert plan.role("reference").model.path == plan.role("actor").model.path


@pytest.mark.parametrize(("epochs", "batch_size", "steps"), [(1, 4, 3), (2, 4, 5), (3, 64, 1), (1, 10, 1)])
def test_epochs_decide_the_number_of_steps(model: Path, epochs: int, batch_size: int, steps: int) -> None:
    plan = planned(model, "sft", f"options.epochs={epochs}", f"options.batch_size={batch_size}")

    assert plan.config.steps == steps


@pytest.mark.parametrize(
    ("kind", "override", "told"),
    [
        ("sft", "rollout.max_staleness=4", "rollout.max_staleness has no effect with kind=sft"),
        ("sft", "rollout.sampling.top_p=0.5", "rollout.sampling.top_p has no effect"),
        ("sft", "reference={}", "reference has no effect with kind=sft"),
        ("dpo", "critic={}", "critic has no effect with kind=dpo"),
        ("dpo", "algorithm.minibatches=2", "algorithm.minibatches has no effect"),
        ("ipo", "weight_sync.transport=disk", "weight_sync.transport has no effect"),
        ("reward_model", "evaluation.temperature=1", "evaluation.temperature has no effect"),
        ("sft", "options.beta=0.1", "beta"),
        ("dpo", "options.beta=0", "beta"),
        ("dpo", "options.label_smoothing=0.5", "label_smoothing"),
        ("sft", "options.batch_size=0", "batch_size"),
        ("sft", "data.name=spel", "spel"),
        ("stf", "name=x", "stf"),
        ("rl", "options.batch_size=4", "options are set and kind is rl"),
    ],
)
def test_what_has_no_effect_or_is_unknown_is_refused(model: Path, kind: str, override: str, told: str) -> None:
    with pytest.raises(ArealError) as caught:
        planned(model, kind, override)

    assert told in str(caught.value)
