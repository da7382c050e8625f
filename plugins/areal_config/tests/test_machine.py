"""A plan for a machine that is described: as many devices as it has, and what is known not to fit into their memory."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from areal_config.machine import Machine, described
from areal_config.plan_text import describe_plan
from areal_core.cli.main import main
from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan, plan_here
from areal_core.contract.errors import ConfigError, EngineMissing, PluginError, ResourceError
from areal_core.plugins import extensions
from areal_core.plugins.registry import Registry
from areal_torch.testing.models import make_tiny_model

pytest.importorskip("areal_fsdp")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("machine") / "m")


def planned(model: Path, there: Machine, *overrides: str) -> Plan:
    base = {
        "model": {"path": str(model)},
        "data": {"name": "spell"},
        "rollout": {"backend": "vllm:d1", "reward": {"name": "exact_match"}, "sampling": {"max_new_tokens": 8}},
        "actor": {"backend": "fsdp:d2"},
    }
    return make_plan(load_config(None, overrides, base), Registry(environ={}), there.devices, installed=False)


@pytest.mark.parametrize(
    ("text", "devices", "memory"),
    [
        ("cuda:8x80GB", {"cuda": 8}, {"cuda": 80 * 10**9}),
        ("npu:64GiB", {"npu": 1}, {"npu": 64 * 2**30}),
        ("cuda:2x0.5GB", {"cuda": 2}, {"cuda": 5 * 10**8}),
        ("cpu:24GB", {}, {"cpu": 24 * 10**9}),
    ],
)
def test_a_description_is_a_machine(text: str, devices: dict[str, int], memory: dict[str, int]) -> None:
    found = described(text, Registry(environ={}))

    assert (found.devices, found.memory) == (devices, memory)


@pytest.mark.parametrize("text", ["cuda", "cuda:8", "cuda:0x80GB", "cuda:8x80", "cpu:2x24GB", "80GB", "cuda:8x80TB"])
def test_what_describes_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="describes no machine"):
        described(text, Registry(environ={}))


def test_an_unknown_kind_of_device_is_refused() -> None:
    with pytest.raises(PluginError, match="qpu"):
        described("qpu:8x80GB", Registry(environ={}))


def test_a_run_is_planned_for_devices_that_are_not_here(model: Path) -> None:
    """Nor is the environment of vLLM."""
    plan = planned(model, described("cuda:3x80GB", Registry(environ={})))

    assert {role.device for role in plan.roles} == {"cuda"}
    assert Machine(devices={}, memory={"cuda": 80 * 10**9}).misfits(plan) == []
    with pytest.raises(ResourceError, match="needs 3 cuda devices, 2 are here"):
        planned(model, described("cuda:2x80GB", Registry(environ={})))


def test_a_role_that_cannot_fit_is_named_with_what_it_needs(model: Path) -> None:
    """Where there is room for the engine and none for the trainer, it is the trainer."""
    plan = planned(model, described("cuda:2x80GB", Registry(environ={})), "actor.backend=fsdp:d1")
    actor, rollout = plan.role("actor").memory_per_worker, plan.role("rollout").memory_per_worker

    assert Machine(devices={}, memory={"cuda": max(actor, rollout)}).misfits(plan) == []
    (warning,) = Machine(devices={}, memory={"cuda": max(actor, rollout) - 1}).misfits(plan)
    assert warning.startswith("actor: ") and "on each device" in warning


def test_on_the_cpu_all_roles_share_the_memory(model: Path) -> None:
    plan = planned(model, Machine(devices={}), "rollout.backend=reference:d2", "actor.backend=reference:d1")
    needed = sum(role.num_workers * role.memory_per_worker for role in plan.roles)

    assert Machine(devices={}, memory={"cpu": needed}).misfits(plan) == []
    assert Machine(devices={}, memory={"cpu": needed - 1}).misfits(plan)[0].startswith("all roles together: ")
    assert Machine(devices={}).misfits(plan) == []


@pytest.mark.parametrize("device", ["cuda:1x80GB", "cpu:80GB"])
def test_turns_are_refused_where_one_of_them_does_not_fit(model: Path, device: str) -> None:
    """Each by itself, not both together; one that has devices of its own is only warned of."""
    there = described(device, Registry(environ={}))
    (kind,) = there.memory
    own = ["rollout.backend=reference:d1", "actor.backend=fsdp:d1", "placement=shared", f"device={kind}"]
    plan = planned(model, there, *own)
    training, generating = (plan.role(name).memory_per_worker for name in ("actor", "rollout"))

    assert training > generating
    told = re.search(r"training ([\d.]+) (KiB|MiB) \+ activations", describe_plan(plan))
    assert told is not None
    assert float(told[1]) * {"KiB": 2**10, "MiB": 2**20}[told[2]] == pytest.approx(training, rel=0.01)
    assert Machine(devices={}, memory={kind: training}).misfits(plan) == []
    with pytest.raises(ResourceError, match="the turn of training needs"):
        Machine(devices={}, memory={kind: training - 1}).misfits(plan)
    frozen = planned(model, evolve(there, devices={"cuda": 2}), *own, "reference={backend: reference:d1}")
    if kind == "cpu":
        with pytest.raises(ResourceError, match="the turn of training needs"):
            Machine(devices={}, memory={kind: training}).misfits(frozen)
    else:
        assert Machine(devices={}, memory={kind: training}).misfits(frozen) == []


def test_the_command_plans_for_another_machine(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"model: {{path: {model}}}\ndata: {{name: spell}}\nactor: {{backend: 'fsdp:d2'}}\n"
        "rollout: {backend: 'reference:d1', reward: {name: exact_match}, sampling: {max_new_tokens: 8}}\n"
    )

    assert main(["train", str(file), "--dry-run", "--assume", "cuda:4x0.000001GB"]) == 0
    told = capsys.readouterr().out
    assert "2 cuda" in told and "warning: actor: weights and optimizer states need" in told
    assert main(["train", str(file), "--assume", "cuda:4x80GB"]) == 2
    assert "--assume without --dry-run" in capsys.readouterr().err


def test_without_the_package_a_run_is_planned_and_no_other_machine_is(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It warns of nothing then; `--assume` says what to install."""
    run = load_config(
        None,
        ["actor.backend=reference:d1", "rollout.backend=reference:d1"],
        {
            "model": {"path": str(model)},
            "data": {"name": "spell"},
            "rollout": {"reward": {"name": "exact_match"}, "sampling": {"max_new_tokens": 8}},
        },
    )
    offered = extensions.extension
    for module in ("areal_core.config.plan", "areal_core.plugins.extensions"):
        without = cache(lambda name: None if name == "machine" else offered(name))
        monkeypatch.setattr(f"{module}.extension", without)
    monkeypatch.setattr(Machine, "misfits", lambda self, plan: ["does not fit"])

    assert plan_here(run, Registry(environ={})).warnings == ()
    with pytest.raises(EngineMissing, match=r"--assume needs the extension 'machine'(.|\n)*areal.config"):
        plan_here(run, Registry(environ={}), "cuda:8x80GB")
