"""The weight transports of one machine, as the registry sees them."""

from __future__ import annotations

from areal_core.plugins.claims import full, unsupported
from areal_core.plugins.manifest import Manifest

DISK = Manifest(
    role="transport",
    name="disk",
    contract=(1, 2),
    factory="areal_local.transports.disk:DiskTransport",
    config="areal_local.transports.config:DiskConfig",
    conformance="areal_local.transports.conformance:DISK",
    requires=("torch>=2.11", "safetensors>=0.5"),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="safetensors files in a folder every participant sees",
    claims={
        "streams": unsupported("a version is stored, and read whenever a receiver asks"),
        "across_hosts": full(),
    },
)

SHM = Manifest(
    role="transport",
    name="shm",
    contract=(1, 2),
    factory="areal_local.transports.shm:ShmTransport",
    config="areal_local.transports.config:ShmConfig",
    conformance="areal_local.transports.conformance:SHM",
    requires=("torch>=2.11",),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="shared memory, for processes of one machine",
    claims={
        "streams": unsupported("a version is stored, and read whenever a receiver asks"),
        "across_hosts": unsupported("memory is shared by processes of one machine"),
    },
)

COLLECTIVE = Manifest(
    role="transport",
    name="collective",
    contract=(1, 2),
    factory="areal_local.transports.collective:CollectiveTransport",
    config="areal_local.transports.config:CollectiveConfig",
    conformance="areal_local.transports.conformance:COLLECTIVE",
    requires=("torch>=2.11",),
    extra="engine",
    devices=("cpu", "cuda", "npu"),
    summary="a process group of its own: gloo, NCCL or HCCL broadcasts, on any machines",
    claims={"streams": full(), "across_hosts": full()},
)
