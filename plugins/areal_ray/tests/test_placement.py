"""From a job to bundles: nothing too little, nothing spread wrongly, and what cannot be is told with its numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.contract.device import Device
from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job
from areal_ray.placement import Machine, machines_of, shortage, wish, wish_of_guests

GPU = Device(name="cuda", vendor="any", torch_type="cuda", see=lambda environ: (), resource="GPU")


def job(num_workers: int, **fields: object) -> Job:
    """A job of workers with one accelerator each."""
    given = {"role": "actor", "engine_role": "train", "backend": "fsdp", "device": "cuda", **fields}
    return Job(num_workers=num_workers, **given)  # type: ignore[arg-type]  # fields of Job


def machine(number: int, gpus: int, cpus: int = 64) -> Machine:
    """One of a cluster."""
    resources = {"GPU": float(gpus), "CPU": float(cpus), "memory": 1e12}
    return Machine(id=f"id{number}", address=f"10.0.0.{number}", name=f"node-{number}", resources=resources)


clusters = st.lists(st.integers(0, 8), min_size=1, max_size=5).map(
    lambda gpus: [machine(number, count) for number, count in enumerate(gpus)]
)


@given(clusters, st.integers(1, 8), st.integers(1, 3))
def test_workers_anywhere_have_room_if_the_devices_of_single_machines_do(
    machines: list[Machine], num_workers: int, each: int
) -> None:
    """A worker's devices are of one machine, so four machines of one do not hold a worker of four."""
    wanted = wish(job(num_workers, devices_per_worker=each), GPU, machines, count_cpus=True)
    room = sum(int(one.resources["GPU"]) // each for one in machines)

    assert bool(shortage(wanted, machines)) == (room < num_workers)
    assert sum(bundle["GPU"] for bundle in wanted.bundles) == num_workers * each
    assert wanted.strategy == "PACK" and not wanted.bundle_of


@given(clusters, st.integers(1, 4), st.integers(1, 4))
def test_hosts_are_filled_in_rank_order_with_equally_many(machines: list[Machine], hosts: int, each: int) -> None:
    """As many machines as asked for, each of which holds its share as a whole."""
    wanted = wish(job(hosts * each, num_hosts=hosts), GPU, machines, count_cpus=True)
    fitting = sum(one.resources["GPU"] >= each for one in machines)

    assert wanted.bundle_of == [rank // each for rank in range(hosts * each)]
    assert [bundle["GPU"] for bundle in wanted.bundles] == [each] * hosts
    assert wanted.strategy == ("STRICT_SPREAD" if hosts > 1 else "STRICT_PACK")
    assert bool(shortage(wanted, machines)) == (fitting < hosts)


def test_what_cannot_be_is_told_with_its_numbers() -> None:
    """What was asked for, and what each machine has."""
    machines = [machine(1, 2), machine(2, 0)]
    told = shortage(wish(job(2, devices_per_worker=4), GPU, machines, count_cpus=True), machines)

    assert told == (
        "2 x [CPU 1, GPU 4] asked for; there is node-1 (10.0.0.1) with CPU 64, GPU 2, memory 931 GiB; "
        "node-2 (10.0.0.2) with CPU 64, GPU 0, memory 931 GiB"
    )


@pytest.mark.parametrize("name", ["10.0.0.2", "node-2", "id2"])
def test_a_machine_is_named_by_address_name_or_id(name: str) -> None:
    """And by nothing else: a name that no machine has is refused with those there are."""
    machines = [machine(1, 8), machine(2, 8)]

    assert wish(job(1, hosts=[name]), GPU, machines, count_cpus=True).machines == [["id2"]]
    with pytest.raises(ResourceError, match=r"is to run on node-9, which") as caught:
        wish(job(1, hosts=[name, "node-9"]), GPU, machines, count_cpus=True)
    assert "node-1 (10.0.0.1), node-2 (10.0.0.2)" in caught.value.why


def test_beside_another_role_and_on_a_named_machine_has_to_be_one_machine() -> None:
    """Both are asked for, so both hold."""
    machines = [machine(1, 8), machine(2, 8)]

    assert wish(job(1), GPU, machines, ["id1"], count_cpus=True).machines == [["id1"]]
    with pytest.raises(ResourceError, match="no machine is both"):
        wish(job(1, hosts=["node-2"]), GPU, machines, ["id1"], count_cpus=True)


def test_workers_that_cannot_be_dealt_out_evenly_are_refused() -> None:
    """Three on two hosts."""
    with pytest.raises(ConfigError, match="3 workers of role 'actor' cannot be spread over 2 hosts"):
        wish(job(3, num_hosts=2), GPU, [machine(1, 8)], count_cpus=True)


def test_guests_take_no_device_of_their_own_and_each_is_on_its_machine() -> None:
    """They share those of another role, whose bundles hold them."""
    wanted = wish_of_guests(job(2, memory=5), ["id2", "id1"], count_cpus=True)

    assert wanted.machines == [["id2"], ["id1"]] and wanted.bundle_of == [0, 1]
    assert wanted.bundles == [{"CPU": 1.0, "memory": 5.0}] * 2


def test_processors_of_an_own_ray_are_not_given_out() -> None:
    """As with the scheduler of one machine: two cores hold a run of eight ranks."""
    machines = [machine(1, 0, cpus=2)]
    many = job(8, device="cpu", cpus_per_worker=4)
    cpu = Device(name="cpu", vendor="any", torch_type="cpu", see=lambda environ: (), resource="CPU")

    assert shortage(wish(many, cpu, machines, count_cpus=True), machines)
    assert not shortage(wish(many, cpu, machines, count_cpus=False), machines)


def test_machines_that_are_gone_are_none() -> None:
    """Ray lists them for as long as it lives."""
    node = {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "one", "Resources": {"CPU": 1.0}}

    assert [each.id for each in machines_of([{**node, "Alive": True}, {**node, "NodeID": "b", "Alive": False}])] == [
        "a"
    ]
