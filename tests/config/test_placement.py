"""What a run asks its scheduler for: in the yaml, in the plan, and refused where the scheduler cannot obey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from areal_config.plan_text import describe_plan
from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.config.weight_transport import TransportPlan, choose_transport, reachable
from areal_core.contract.abilities import ABILITIES
from areal_core.contract.errors import ArealError, CapabilityError, PlanError, ResourceError
from areal_core.contract.scheduler import Share, Together
from areal_core.plugins.claims import full, when
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Overlay, default_registry
from areal_tasks.quickstart.quickstart import preset_path

from .conftest import MakeFolder

pytest.importorskip("areal_reference")
pytest.importorskip("areal_fsdp")

CLUSTER = "scheduler.backend=cluster"
BESIDE = "rollout.placement.together_with={role: actor, share: devices}"


@pytest.fixture
def model(make_folder: MakeFolder) -> Path:
    """A folder with a context of 256."""
    return make_folder()


def scheduler(*words: str, contract: tuple[int, int] = (1, 1)) -> Overlay:
    """A scheduler called `cluster` that claims these words; nothing of it is ever built."""
    manifest = Manifest(
        role="scheduler",
        name="cluster",
        contract=contract,
        factory="a:b",
        devices=("cpu", "cuda"),
        claims={word: full() for word in words},
    )
    return {("scheduler", "cluster"): (manifest, dict)}


def engine(word: str) -> Overlay:
    """An inference engine called `wide` that shards layers and, if the word says so, over hosts unless it is loud."""
    names = ("parallel.tensor", "weights.staged", "weights.in_flight", "transport.disk", "transport.shm", word)
    claims = {name: full() for name in names}
    if word == "replica.hosts":
        claims[word] = when("loud == false", "nobody hears the others")
    manifest = Manifest(
        role="infer", name="wide", contract=(1, 4), factory="a:b", config=f"{__name__}:Loud", claims=claims
    )
    return {("infer", "wide"): (manifest, dict)}


@frozen(kw_only=True)
class Loud:
    """Options of that engine."""

    loud: bool = False


def plan(model: Path, *overrides: str, overlay: Overlay | None = None, cuda: int = 0) -> Plan:
    """Plan the quickstart's preset with overrides."""
    registry = default_registry()
    config = load_config(preset_path("spell"), [f"model.path={model}", *overrides])
    with registry.overlay(overlay or {}):
        return make_plan(config, registry, {"cuda": cuda})


def test_what_the_yaml_asks_for_reaches_the_job(model: Path) -> None:
    """Key by key, and the plan shows it without the values of variables."""
    keys = "{num_hosts: 2, hosts: [a, b], memory_gib: 1.5, image: 'me/areal:1', env: {HF_TOKEN: hunter2}}"
    overlay = scheduler("hosts.spread", "hosts.named", "memory", "image")
    made = plan(model, CLUSTER, "actor.backend=fsdp:d4", f"actor.placement={keys}", overlay=overlay)

    assert made.role("actor").placement.asks() == {
        "num_hosts": 2,
        "hosts": ("a", "b"),
        "memory": 3 * 2**29,
        "image": "me/areal:1",
        "env": {"HF_TOKEN": "hunter2"},
        "together_with": None,
    }
    told = describe_plan(made)
    assert "actor placement: {'num_hosts': 2, 'hosts': ['a', 'b'], 'memory_gib': 1.5, 'image': 'me/areal:1'" in told
    assert "'env': ['HF_TOKEN']" in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("actor.placement.num_hosts=1", "hosts.one"),
        ("actor.placement.num_hosts=2", "hosts.spread"),
        ("actor.placement.hosts=[a]", "hosts.named"),
        ("rollout.placement.memory_gib=1", "memory"),
        ("rollout.placement.image=me", "image"),
        ("rollout.placement.together_with={role: actor}", "together.host"),
        (BESIDE, "together.devices"),
    ],
)
def test_what_a_scheduler_does_not_claim_is_refused_while_planning(model: Path, override: str, word: str) -> None:
    """Also one that speaks contract 1.0, which is accepted and knows none of these; with the claim the run plans."""
    asked = (CLUSTER, "actor.backend=fsdp:d2", override)
    plan(model, *asked[:2], "rollout.placement.env={A: b}", overlay=scheduler(contract=(1, 0)))

    with pytest.raises(CapabilityError, match=f"scheduler 'cluster' cannot do '{word}'"):
        plan(model, *asked, overlay=scheduler(contract=(1, 0)))
    plan(model, *asked, overlay=scheduler(word))


def test_the_local_scheduler_says_why_it_cannot() -> None:
    """Every word of the role is answered in its manifest, each no with its reason."""
    manifest = default_registry().describe("scheduler", "local")

    assert set(manifest.claims) == set(ABILITIES["scheduler"])
    assert {word for word, claim in manifest.claims.items() if not claim.claimed} == {
        "hosts.spread",
        "hosts.named",
        "image",
    }
    assert all(claim.claimed or claim.why for claim in manifest.claims.values())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rollout.placement.together_with={role: rollout}"], "rollout cannot be placed together with 'rollout'"),
        (["actor.placement.together_with={role: rollout}"], "training roles with a place of their own: none"),
        (["rollout.placement.together_with={role: critic}"], "training roles with a place of their own: actor"),
        ([BESIDE, "device=cuda", "rollout.backend=reference:d2"], "rollout need 2 devices of actor, which has 1"),
        (["actor.placement.num_hosts=2", "actor.backend=fsdp:d3"], "num_hosts=2 with 3 ranks"),
        (["rollout.placement.num_hosts=2", "rollout.backend=wide:d4t3"], "num_hosts=2 with 3 ranks"),
        (
            ["rollout.placement.num_hosts=2", "rollout.backend=wide:t2", "weight_sync.transport=shm"],
            "weights cannot travel by shm(.|\n)*a role asks for 2 hosts",
        ),
        (
            ["actor.placement.num_hosts=2", "actor.backend=fsdp:d2", "weight_sync.transport=shm"],
            "weights cannot travel by shm(.|\n)*a role asks for 2 hosts",
        ),
    ],
)
def test_places_that_contradict_each_other_are_refused(model: Path, overrides: list[str], said: str) -> None:
    """Before anything starts."""
    with pytest.raises(PlanError, match=said):
        plan(model, CLUSTER, *overrides, overlay={**scheduler(*ABILITIES["scheduler"]), **engine("replica.hosts")})


def test_a_replica_over_two_hosts_plans_where_everybody_can(model: Path) -> None:
    """Weights travel by what leaves a host, and a replica owns as many devices in all as it has ranks."""
    asked = ("rollout.placement.num_hosts=2", "rollout.backend=wide:d3t4")
    made = plan(model, CLUSTER, *asked, overlay={**scheduler("hosts.spread"), **engine("replica.hosts")})

    assert (made.role("rollout").num_workers, made.role("rollout").devices_per_worker) == (3, 4)
    assert all(transport.across_hosts for transport in made.transports)


@pytest.mark.parametrize(
    ("word", "overrides", "said"),
    [
        ("parallel.tensor", ["rollout.backend=wide:t2"], "infer backend 'wide' cannot do 'replica.hosts'"),
        ("replica.hosts", ["rollout.backend=wide:t2", "scheduler.backend=local"], "cannot do 'hosts.spread'"),
        ("replica.hosts", ["rollout.backend=wide:t2", "rollout.options={loud: true}"], "on 2 hosts with these options"),
    ],
)
def test_a_replica_over_two_hosts_is_refused_where_somebody_cannot(
    model: Path, word: str, overrides: list[str], said: str
) -> None:
    """The engine, the scheduler, or the engine's options."""
    with pytest.raises(CapabilityError, match=said):
        plan(
            model,
            CLUSTER,
            "rollout.placement.num_hosts=2",
            *overrides,
            overlay={**scheduler("hosts.spread"), **engine(word)},
        )


def test_devices_that_are_shared_are_counted_once(model: Path) -> None:
    """Two roles on one device plan where there is one; without sharing they need two."""
    asked = ["device=cuda", "actor.backend=fsdp:d1"]

    with pytest.raises(ResourceError, match="the run needs 2 cuda devices, 1 are here"):
        plan(model, *asked, cuda=1)
    made = plan(model, *asked, BESIDE, cuda=1)
    assert made.role("rollout").placement.together_with == Together(role="actor", share=Share.DEVICES)


def test_devices_of_other_machines_are_for_their_scheduler_to_count(model: Path) -> None:
    """The controller's machine need not have one."""
    made = plan(model, CLUSTER, "device=cuda", "actor.backend=fsdp:d8", overlay=scheduler("hosts.spread"))

    assert made.role("actor").device == "cuda"


SHM, COLLECTIVE = (
    TransportPlan(name=name, pause=None, staged=True, across_hosts=across)
    for name, across in (("shm", False), ("collective", True))
)


@pytest.mark.parametrize(
    ("plans", "hosts", "found"),
    [
        ([SHM, COLLECTIVE], ["here", "here"], "shm"),
        ([SHM, COLLECTIVE], ["here", "there"], "collective"),
        ([SHM, COLLECTIVE], ["there", "there"], "collective"),
        ([COLLECTIVE], ["here", "here"], "collective"),
    ],
)
def test_weights_travel_by_what_reaches_from_where_workers_are(plans: list[Any], hosts: list[str], found: str) -> None:
    """Shared memory is for one host, and that one the controller's; the reason is told."""
    chosen, why = choose_transport(plans, hosts, lambda host: host == "here")

    assert chosen.name == found
    assert all(host in why for host in hosts)


def test_shared_memory_across_hosts_is_refused() -> None:
    """Asked for by name, it is not quietly replaced."""
    with pytest.raises(PlanError, match=r"weights cannot travel by shm(.|\n)*workers are on here, there"):
        choose_transport([SHM], ["there", "here"], lambda host: host == "here")


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [
        ("disk", {}, {"root": "/shared/run"}),
        ("disk", {"root": "/scratch"}, {"root": "/scratch"}),
        ("collective", {"timeout_s": 9.0}, {"timeout_s": 9.0, "host": "10.0.0.1"}),
        ("collective", {"host": "10.0.0.7"}, {"host": "10.0.0.7"}),
        ("shm", {}, {}),
    ],
)
def test_a_transport_is_where_all_hosts_reach_it(name: str, options: dict[str, Any], found: dict[str, Any]) -> None:
    """An address of the controller, or the run folder; what the user said stands."""
    assert reachable(default_registry(), name, options, host="10.0.0.1", root="/shared/run") == found


def test_the_plan_tells_how_weights_travel(model: Path) -> None:
    """On one host, and what happens where that does not hold; by name there is no other."""
    assert "weights by shm (across hosts by collective), pause none" in describe_plan(plan(model))
    told = describe_plan(plan(model, "weight_sync.transport=disk"))
    assert "weights by disk, pause none" in told


def test_an_unknown_key_of_a_placement_is_named(model: Path) -> None:
    """With its path, as every other key."""
    with pytest.raises(ArealError, match=r"'actor\.placement\.memory'(.|\n)*'actor\.placement\.memory_gib'"):
        plan(model, "actor.placement.memory=3")
