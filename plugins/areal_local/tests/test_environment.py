"""What is in a worker's environment before it imports anything."""

from __future__ import annotations

import attrs

from areal_core.contract.scheduler import Job
from areal_local.scheduler.environment import worker_environment

JOB = Job(role="actor", engine_role="train", backend="fsdp", num_workers=2)


def test_what_the_job_names_wins() -> None:
    """Over what the scheduler sets, and over what the controller has."""
    job = attrs.evolve(JOB, env={"OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "eth7"})
    made = worker_environment(job, {}, {"GLOO_SOCKET_IFNAME": "eth8", "KEPT": "yes"})

    assert (made["OMP_NUM_THREADS"], made["GLOO_SOCKET_IFNAME"], made["KEPT"]) == ("7", "eth7", "yes")
