"""Options of the providers `docker` and `podman`."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class ContainerConfig:
    """Options of `docker` and `podman`.

    Example: ContainerConfig(image="python:3.12-slim", runtime="runsc")
    """

    image: str = field(default="python:3.12-slim", validator=validators.min_len(1))
    """What sandboxes are made of where nobody names an image. It needs a shell with the usual commands, as busybox."""
    root: bool = False
    """Commands are root in their container and may write all of it, not the working folder and /tmp alone. Images of
    tasks that install or build something need it. `disk_mb` then bounds these two folders only."""
    runtime: str = ""
    """Another runtime than the command's own, such as gVisor's `runsc`."""
    start_timeout_s: float = field(default=300.0, validator=validators.gt(0.0))
    """For a container to be there; a first one may have to fetch its image."""
