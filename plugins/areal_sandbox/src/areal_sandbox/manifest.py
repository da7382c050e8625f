"""What the entry points of `areal.sandbox` and `areal.reward` name: plain data, nothing imported."""

from __future__ import annotations

from areal_core.plugins.manifest import Manifest

LOCAL = Manifest(
    role="sandbox",
    name="local",
    contract=(1, 0),
    factory="areal_sandbox.local.provider:LocalProvider",
    config="areal_sandbox.local.config:LocalSandboxConfig",
    summary="bubblewrap on this machine: namespaces, control groups, no network",
)

DOCKER = Manifest(
    role="sandbox",
    name="docker",
    contract=(1, 0),
    factory="areal_sandbox.containers.provider:docker",
    config="areal_sandbox.containers.config:ContainerConfig",
    summary="containers of any image, by the docker command",
)

PODMAN = Manifest(
    role="sandbox",
    name="podman",
    contract=(1, 0),
    factory="areal_sandbox.containers.provider:podman",
    config="areal_sandbox.containers.config:ContainerConfig",
    summary="containers of any image, by the podman command",
)

E2B = Manifest(
    role="sandbox",
    name="e2b",
    contract=(1, 0),
    factory="areal_sandbox.hosted.e2b:E2BProvider",
    config="areal_sandbox.hosted.config:E2BConfig",
    requires=("e2b>=2.63",),
    extra="e2b",
    summary="micro virtual machines of E2B; the key is read from E2B_API_KEY",
)

DAYTONA = Manifest(
    role="sandbox",
    name="daytona",
    contract=(1, 0),
    factory="areal_sandbox.hosted.daytona:DaytonaProvider",
    config="areal_sandbox.hosted.config:DaytonaConfig",
    requires=("daytona>=0.226",),
    extra="daytona",
    summary="sandboxes of Daytona; the key is read from DAYTONA_API_KEY",
)

CODE = Manifest(
    role="reward",
    name="code",
    contract=(1, 0),
    factory="areal_sandbox.code.reward:CodeReward",
    config="areal_sandbox.code.config:CodeConfig",
    summary="unit tests or pairs of input and output, run against the completion's program in a sandbox",
)
