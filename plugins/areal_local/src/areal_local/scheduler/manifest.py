"""The scheduler of the core, as the registry sees it."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest

LOCAL = Manifest(
    role="scheduler",
    name="local",
    contract=(1, 0),
    factory="areal_local.scheduler.local_scheduler:LocalScheduler",
    config="areal_local.scheduler.config:LocalConfig",
    devices=("cpu", "cuda", "npu"),
    summary="worker processes on this machine",
)
