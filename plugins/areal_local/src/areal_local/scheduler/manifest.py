"""The scheduler of one machine, as the registry sees it."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet, unsupported
from areal_core.plugins.manifest import Manifest

_ONE_MACHINE = "workers are processes of the controller's machine"

LOCAL = Manifest(
    role="scheduler",
    name="local",
    contract=(1, 1),
    factory="areal_local.scheduler.local_scheduler:LocalScheduler",
    config="areal_local.scheduler.config:LocalConfig",
    devices=("cpu", "cuda", "npu"),
    summary="worker processes on this machine",
    conformance="areal_local.scheduler.conformance:LOCAL",
    claims={
        "hosts.one": full(),
        "hosts.spread": unsupported(_ONE_MACHINE),
        "hosts.named": unsupported(_ONE_MACHINE),
        "memory": full(),
        "image": not_yet("workers are plain processes; `python` runs them in another environment"),
        "together.host": full(),
        "together.devices": full(),
    },
)
