"""What a user asks of Kubernetes for one run.

Knows: options, the names Kubernetes takes, and what is derived from a plan where nothing was said.
Does not know: manifests (`manifest`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from areal_core.contract.device import CPU
from areal_core.contract.errors import ConfigError
from areal_ray.elsewhere import RunElsewhere

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?([EPTGMk]i?)?")
_MAX_NAME = 47
"""Of a RayJob: KubeRay makes longer names of it."""
_RESOURCES: Mapping[str, str] = MappingProxyType({"cuda": "nvidia.com/gpu"})
_GIB, _ROOM_GIB = 2**30, 8


@frozen(kw_only=True)
class Request:
    """Options of one job.

    Example: Request(image="registry/areal:1", claim="runs", namespace="me", env_from=("wandb",))
    """

    image: str
    claim: str
    """A PersistentVolumeClaim that every pod can write; run folders are on it."""
    claim_size: str = ""
    """Make the claim too, of this size."""
    storage_class: str = ""
    namespace: str = ""
    name: str = ""
    """Of the job; empty makes one of the run's."""
    memory: str = ""
    """Of a worker pod; empty is derived from the plan."""
    head_cpus: int = 4
    head_memory: str = "16Gi"
    device_resource: str = ""
    """What accelerators are called there; empty is nvidia.com/gpu for cuda."""
    auth_secret: str = ""
    """A Secret with the token of the cluster, under auth_token; empty has the operator make one."""
    env_from: tuple[str, ...] = ()
    """Secrets whose entries are variables of all pods."""
    in_pod: tuple[str, ...] = ()
    """Overrides that hold in the pods only."""
    retries: int = 3

    def __attrs_post_init__(self) -> None:
        """Refuse what Kubernetes would."""
        names = {"--claim": self.claim, "--namespace": self.namespace, "--auth-secret": self.auth_secret}
        names |= {"--name": self.name, **{f"--env-from {name}": name for name in self.env_from}}
        for option, name in names.items():
            if name and (not _NAME.fullmatch(name) or len(name) > 253):
                raise ConfigError(
                    f"{option.split()[0]} {name!r} is no name of Kubernetes",
                    why="they have small letters, digits, - and .",
                    fix=f"for example {option.split()[0]} my-name",
                )
        sizes = {"--claim-size": self.claim_size, "--memory-per-worker": self.memory, "--head-memory": self.head_memory}
        for option, size in sizes.items():
            if size and not _QUANTITY.fullmatch(size):
                raise ConfigError(
                    f"{option} {size!r} is no size", why="it is a number and a unit", fix=f"{option} 64Gi"
                )
        for option, count, least in (("--retries", self.retries, 0), ("--head-cpus", self.head_cpus, 1)):
            if count < least:
                raise ConfigError(f"{option} {count}", why=f"it is {least} or more", fix=f"{option} {least + 1}")
        if self.storage_class and not self.claim_size:
            raise ConfigError(
                "--storage-class without --claim-size", why="the claim is there already", fix="add --claim-size 500Gi"
            )

    def job_name(self, run: RunElsewhere) -> str:
        """Return the job's name. Raises ConfigError: the run's has nothing that Kubernetes takes, or it is too long."""
        name = self.name or re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-")[:_MAX_NAME].strip("-")
        if not name or len(name) > _MAX_NAME or "." in name:
            raise ConfigError(
                f"{name or run.name!r} is no name of a RayJob",
                why=f"it has small letters, digits and -, {_MAX_NAME} at most",
                fix="--name my-run",
            )
        return name

    def resource(self, device: str) -> str:
        """Return what accelerators of a kind are called there. Raises ConfigError: they have several names."""
        found = self.device_resource or _RESOURCES.get(device, "")
        if not found:
            raise ConfigError(
                f"what Kubernetes calls {device} devices is not known",
                why="it depends on the device plugin of the cluster",
                fix="--device-resource NAME, such as huawei.com/Ascend910; kubectl describe node shows it",
            )
        return found

    def worker_memory(self, run: RunElsewhere) -> str:
        """Return the memory of a worker pod: what was asked, or all weights and states of the plan, and some room."""
        if self.memory:
            return self.memory
        needed = sum(role.num_workers * role.memory_per_worker for role in run.plan.roles)
        return f"{-(-needed // (run.nodes.count * _GIB)) + _ROOM_GIB}Gi"


def worker_cpus(run: RunElsewhere) -> int:
    """Return the processors of a worker pod: what was asked, or an equal share of what the plan needs."""
    needed = sum(role.num_workers * role.cpus_per_worker for role in run.plan.roles)
    return run.nodes.cpus or max(-(-needed // run.nodes.count), 1)


def sized(run: RunElsewhere, asked: int, gpus: int) -> tuple[int, int]:
    """Return how many worker pods of how many accelerators each a plan needs, where less was said.

    Args:
        asked: worker pods; 0 was not said.
        gpus: accelerators of each; 0 was not said.
    """
    if run.device == CPU:
        return asked or 1, 0
    owners = [role for role in run.plan.roles if not role.placement.owner]
    total = sum(role.num_workers * role.devices_per_worker for role in owners)
    each = gpus or (-(-total // asked) if asked else min(total, 8))
    return asked or -(-total // each), each
