"""`placement: shared`: what it stands for, what it forbids, and who may ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_config.plan_text import describe_plan
from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import ArealError, CapabilityError, PlanError, ResourceError, WrongType
from areal_core.contract.inference import PauseMode
from areal_core.contract.scheduler import Together
from areal_core.plugins.claims import full
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Overlay, default_registry
from areal_tasks.quickstart.quickstart import preset_path

from .conftest import MakeFolder

pytest.importorskip("areal_reference")
pytest.importorskip("areal_fsdp")

LORA = "actor.lora={rank: 2, alpha: 4, targets: [q_proj]}"


@pytest.fixture
def model(make_folder: MakeFolder) -> Path:
    """A folder with a context of 256."""
    return make_folder()


def plan(model: Path, *overrides: str, overlay: Overlay | None = None, cuda: int = 0, generating: bool = True) -> Plan:
    """Plan the quickstart's preset by turns."""
    registry = default_registry()
    config = load_config(preset_path("spell"), [f"model.path={model}", "placement=shared", *overrides])
    with registry.overlay(overlay or {}):
        return make_plan(config, registry, {"cuda": cuda}, generating=generating)


def test_one_device_is_enough_and_nothing_overlaps(model: Path) -> None:
    """The fleet is the actor's guest, no lag is possible, weights wait between the turns, and the plan tells so."""
    made = plan(model, "rollout.max_staleness=3", cuda=1)

    rollout = made.role("rollout")
    assert rollout.placement.together_with == Together(role="actor", share="devices")
    assert made.config.rollout.max_staleness == 0
    assert {(each.name, each.pause) for each in made.transports} == {
        ("shm", PauseMode.ABORT),
        ("disk", PauseMode.ABORT),
    }
    told = describe_plan(made)
    assert "by turns on each device: training" in told
    assert "never overlap, so that rollout.max_staleness=3 is 0 in this run" in told
    with pytest.raises(ResourceError, match="the run needs 2 cuda devices") as refused:
        plan(model, "placement=separate", cuda=1)
    assert "placement=shared" in refused.value.fix


def test_a_fleet_that_sleeps_needs_memory_for_its_weights_once(model: Path) -> None:
    """New weights come when the old ones are gone."""
    once, twice = (
        plan(model, f"placement={word}").role("rollout").memory_per_worker for word in ("shared", "separate")
    )
    assert twice == 2 * once


@pytest.mark.parametrize(
    ("overrides", "error", "told"),
    [
        (["rollout.staleness_policy=drop"], PlanError, "rollout.staleness_policy=wait"),
        (["rollout.adapters={a: here}"], PlanError, "leave rollout.adapters out"),
        (["weight_sync.pause=keep"], PlanError, "weight_sync.pause=abort"),
        (["weight_sync.lora=adapter", LORA], PlanError, "weight_sync.lora=merged"),
        (["actor.lora={path: there}"], PlanError, "begin a new one"),
        (["rollout.placement.together_with={role: actor}"], PlanError, "leave it out"),
        (["weight_sync.transport=collective"], CapabilityError, "weight_sync.transport=auto"),
        (["kind=sft"], PlanError, "placement=separate"),
        (["placement=by_turns"], WrongType, "shared"),
        (["rollout.backend=reference:d2"], PlanError, "a device has one guest at most"),
    ],
)
def test_what_cannot_be_done_by_turns_is_refused(
    model: Path, overrides: list[str], error: type[ArealError], told: str
) -> None:
    """With what to do instead, before anything starts."""
    with pytest.raises(error) as refused:
        plan(model, *overrides, cuda=1)

    assert told in str(refused.value)


@pytest.mark.parametrize(("role", "word"), [("train", "memory.offload"), ("infer", "memory.sleep")])
def test_backends_that_keep_their_memory_are_refused_with_those_that_can(model: Path, role: str, word: str) -> None:
    """The claim decides."""
    names = ("parallel.data", "pause.abort", "weights.staged", "transport.shm", "memory.offload", "memory.sleep")
    claims = {name: full() for name in names if name != word}
    manifest = Manifest(role=role, name="hoarder", contract=(1, 0), factory="a:b", claims=claims)
    key = "actor.backend" if role == "train" else "rollout.backend"

    with pytest.raises(CapabilityError, match=f"cannot do '{word}' on cpu") as refused:
        plan(model, f"{key}=hoarder:d1", overlay={(role, "hoarder"): (manifest, dict)})
    assert "reference" in refused.value.fix


def test_servers_are_told_at_their_start_that_they_will_sleep(model: Path) -> None:
    """Their option is set, whatever else is."""
    registry = default_registry()
    keys = [f"model.path={model}", "placement=shared", "rollout.backend=vllm:d1", "device=cuda"]
    made = make_plan(load_config(preset_path("spell"), keys), registry, {"cuda": 1}, installed=False)

    assert made.role("rollout").options["sleep"] is True


def test_an_adapter_travels_merged_and_a_replay_takes_no_turns(model: Path) -> None:
    """An engine that slept has no base weights; a replay has no fleet."""
    assert plan(model, LORA).roles[-1].lora is None
    assert plan(model, LORA, "placement=separate").roles[-1].lora is not None
    assert plan(model, generating=False).config.placement == "separate"


def test_roles_with_devices_of_their_own_keep_their_memory(model: Path) -> None:
    """On accelerators only who is where the fleet is takes turns; on the CPU everybody is."""
    claims = {name: full() for name in ("parallel.data", "head.value")}
    manifest = Manifest(
        role="train", name="hoarder", contract=(1, 0), factory="a:b", devices=("cpu", "cuda"), claims=claims
    )
    hoarder: Overlay = {("train", "hoarder"): (manifest, dict)}
    keys = ("reference={backend: hoarder:d1}", "algorithm.advantages.kl.coefficient=0.1")

    plan(model, *keys, overlay=hoarder, cuda=2)
    with pytest.raises(CapabilityError, match=r"cannot do 'memory\.offload' on cpu"):
        plan(model, *keys, overlay=hoarder)
