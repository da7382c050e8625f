"""A scheduler of several hosts on one machine: network namespaces with addresses and shared memory of their own.

    AREAL_TEST_NAMESPACES=10.231.0.1=one,10.231.0.2=two    address=namespace, the controller's first

Knows: how a worker enters its namespace.
Does not know: who made the namespaces (`test_hosts`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from areal_conformance.adapter import Adapter
from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.contract.scheduler import Job, Worker
from areal_core.plugins.claims import full, not_yet
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.marks import backend
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler

NAMESPACES = "AREAL_TEST_NAMESPACES"
_OWN_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
"""Gives what it runs a shared memory of its own: engines take who sees theirs for a process of their host."""
ADAPTER = Adapter(patience=2.0)
MANIFEST = Manifest(
    role="scheduler",
    name="namespaces",
    contract=(1, 1),
    factory="namespaces:NamespaceScheduler",
    devices=("cpu", "cuda"),
    claims={
        "hosts.one": full(),
        "hosts.spread": full(),
        "hosts.named": full(),
        "memory": full(),
        "image": not_yet("a namespace has no files of its own"),
        "together.host": not_yet("devices are counted, hosts are not"),
        "together.devices": not_yet("devices are counted, hosts are not"),
    },
    conformance=f"{__name__}:ADAPTER",
)


@backend(MANIFEST, config=LocalConfig)
class NamespaceScheduler(LocalScheduler):
    """The local scheduler, whose workers live in the namespaces of the environment."""

    manifest = MANIFEST

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        pairs = (word.partition("=") for word in os.environ[NAMESPACES].split(","))
        self._namespaces: Mapping[str, str] = {address: name for address, _, name in pairs}

    async def submit(self, job: Job) -> Sequence[Worker]:
        """Refuse hosts that are not there, and start the workers on the others."""
        if job.num_workers % (job.num_hosts or 1) and job.num_hosts <= len(self._namespaces):
            raise ConfigError(f"{job.num_workers} workers on {job.num_hosts} hosts", why="each takes equally many")
        unknown = sorted(set(job.hosts) - set(self._namespaces))
        if unknown or job.num_hosts > len(job.hosts or self._namespaces):
            raise ResourceError(
                f"{job.role!r} asks for {job.num_hosts} hosts, {', '.join(unknown) or 'which are too many'}",
                why=f"hosts are {', '.join(self._namespaces)}",
            )
        return await super().submit(job)

    def address(self, job: Job, rank: int) -> str:
        """Return the address of the worker's host; hosts are filled in the order the job names them."""
        hosts = (job.hosts or tuple(self._namespaces))[: job.num_hosts or 1]
        return hosts[rank * len(hosts) // job.num_workers]

    def command(self, job: Job, rank: int) -> tuple[str, ...]:
        """Enter the namespace first, and leave the shared memory of others behind."""
        enter = ("ip", "netns", "exec", self._namespaces[self.address(job, rank)], *_OWN_MEMORY)
        return (*enter, *super().command(job, rank))
