"""The scheduler of a Ray cluster, as the registry sees it."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet
from areal_core.plugins.manifest import Manifest

RAY = Manifest(
    role="scheduler",
    name="ray",
    contract=(1, 1),
    factory="areal_ray.ray_scheduler:RayScheduler",
    config="areal_ray.config:RayConfig",
    devices=("cpu", "cuda", "npu", "xpu"),
    requires=("ray>=2.60",),
    extra="engine",
    summary="worker processes on the machines of a Ray cluster",
    claims={
        "hosts.one": full(),
        "hosts.spread": full(),
        "hosts.named": full(),
        "memory": full(),
        "image": not_yet("workers run in the environment of their Ray node; `python` names another interpreter there"),
        "together.host": full(),
        "together.devices": full(),
    },
    conformance="areal_ray.conformance:ADAPTER",
)
