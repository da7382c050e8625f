"""Which interpreter runs an engine's server.

In this order: the interpreter that was named, the one the worker itself runs under if it has the
engine, the environment `areal env create` made.

Knows: where to look, and whether what is found still is what the plugin was tested with.
Does not know: how an environment is made; imports no engine and no torch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from attrs import field, frozen

from areal_core.contract.errors import EngineMissing
from areal_serving.environments import places
from areal_serving.environments.recipe import Recipe
from areal_serving.environments.sources import installed_version

LIMIT_S = 60.0
_ASK = """
import json, sys
from importlib import metadata
from importlib.util import find_spec
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
spec = find_spec(sys.argv[1])
found = spec is not None and spec.origin is not None  # a folder that happens to be called so has none
print(json.dumps({"found": found, "versions": [version(name) for name in sys.argv[2:]]}))
"""


@frozen(kw_only=True)
class EnginePython:
    """An interpreter that has the engine.

    Example: EnginePython(path=Path("/home/me/.local/share/areal/envs/vllm-cpu/bin/python"), name="vllm",
                          device="cpu", engine="vllm", engine_version="0.32.0", origin="environment")
    """

    path: Path
    name: str
    device: str
    engine: str
    """The module to import."""
    engine_version: str
    """Empty where the engine has no metadata, as in a source checkout."""
    origin: str
    """`named`, `this interpreter` or `environment`."""
    warnings: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Why it may not be what the plugin was tested with, each with what to do."""

    @property
    def create_command(self) -> str:
        """Return the command that makes its environment."""
        return create_command(self.name, self.device)

    def __str__(self) -> str:
        version = f" {self.engine_version}" if self.engine_version else ""
        return f"{self.name}{version} under {self.path}"


def find(
    recipe: Recipe,
    *,
    python: str | None = None,
    worker: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> EnginePython:
    """Return the interpreter for an engine on a device.

    Args:
        python: an interpreter that was named for the engine; no other is looked at.
        worker: the interpreter the worker runs under, this one if None; taken if it has the engine.
        environ: where AREAL_ENVS and XDG_DATA_HOME are read; the process's own environment if None.

    Raises:
        EngineMissing: no interpreter has the engine; names the places and the command that makes one.
    """
    if python is not None:
        return _named(recipe, python)
    version = _asked(recipe, worker)
    if version is not None:
        path = Path(worker or sys.executable)
        return EnginePython(
            path=path,
            name=recipe.name,
            device=recipe.device,
            engine=recipe.engine,
            engine_version=version,
            origin="this interpreter" if worker is None else "named",
        )
    folder = places.folder_of(recipe.name, recipe.device, places.root(environ))
    if not places.is_whole(folder):
        raise _missing(recipe, folder)
    return _managed(recipe, folder)


def create_command(name: str, device: str) -> str:
    """Return the command that makes an environment, for the fix of an error."""
    return f"areal env create {name} --device {device}"


def outdated(recipe: Recipe, marker: places.Marker) -> str:
    """Return why an environment is not what would be made today, empty if it is."""
    if marker.digest != recipe.digest():
        return f"made with {recipe.name} {marker.engine_version} from another lock than {recipe.plugin} has"
    for package, version in marker.packages.items():
        here = installed_version(package)
        if here not in (None, version):
            return f"it has {package} {version}, here is {here}"
    return ""


def _managed(recipe: Recipe, folder: Path) -> EnginePython:
    marker = places.read_marker(folder)
    assert marker is not None, "is_whole has read it"
    reason = outdated(recipe, marker)
    command = create_command(recipe.name, recipe.device)
    return EnginePython(
        path=places.interpreter(folder),
        name=recipe.name,
        device=recipe.device,
        engine=recipe.engine,
        engine_version=marker.engine_version,
        origin="environment",
        warnings=[f"environment {folder} is out of date: {reason}; {command}"] if reason else (),
    )


def _named(recipe: Recipe, python: str) -> EnginePython:
    path = shutil.which(python)
    if path is None:
        raise EngineMissing(
            f"{python} is not an interpreter",
            why="it is neither an executable file nor on the PATH",
            fix=f"name the python of an environment that has {recipe.engine}, or name none and run: "
            + create_command(recipe.name, recipe.device),
        )
    version = _asked(recipe, path)
    if version is None:
        raise EngineMissing(
            f"{python} cannot run {recipe.name}",
            why=f"it has no module {recipe.engine!r}",
            fix=create_command(recipe.name, recipe.device),
        )
    return EnginePython(
        path=Path(path),
        name=recipe.name,
        device=recipe.device,
        engine=recipe.engine,
        engine_version=version,
        origin="named",
    )


def _asked(recipe: Recipe, python: str | None) -> str | None:
    """Return the engine's version under an interpreter, this one if None; None without the engine."""
    distributions = [recipe.distribution or recipe.engine, recipe.engine]
    if python is None:
        spec = find_spec(recipe.engine)
        if spec is None or spec.origin is None:  # a folder that happens to be called so has no origin
            return None
        return next(filter(None, map(_version, distributions)), "")
    try:
        done = subprocess.run(
            [python, "-c", _ASK, recipe.engine, *distributions],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as exc:
        raise EngineMissing(
            f"{python} does not run",
            why=f"asked for {recipe.engine}, it gave: {exc}",
            fix=create_command(recipe.name, recipe.device),
        ) from exc
    return next(filter(None, answer["versions"]), "") if answer["found"] else None


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _missing(recipe: Recipe, folder: Path) -> EngineMissing:
    try:
        recipe.lock()
    except EngineMissing as absent:
        return absent
    there = f"{folder} was never finished" if folder.exists() else f"there is no {folder}"
    return EngineMissing(
        f"{recipe.name} has no environment for {recipe.device}",
        why=f"this interpreter has no module {recipe.engine!r}, and {there}",
        fix=create_command(recipe.name, recipe.device),
    )
