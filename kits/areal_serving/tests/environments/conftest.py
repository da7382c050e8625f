"""A tiny engine as a wheel in a folder, a plugin with a recipe for it, and installers that need no network."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.benches.command import Run, areal_command

from areal_serving.environments import places
from areal_serving.environments.installers import Installer
from areal_serving.environments.recipe import Recipe

HERE = "{}.{}".format(*sys.version_info)


def write_wheel(folder: Path, name: str, version: str, source: str = "") -> None:
    """Write a wheel of one package with one module."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def lock_text(wheels: Path, *pins: str) -> str:
    """Return the lines of a lock, with the hashes of the wheels in a folder; of one that is not there, of nothing."""

    def line(pin: str) -> str:
        name, _, version = pin.partition("==")
        wheel = wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        content = wheel.read_bytes() if wheel.exists() else b""
        return f"{pin} --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"

    return "".join(map(line, pins))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that is on the path of the processes `areal` starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def areal(site: Path, tmp_path: Path) -> Run:
    """Return a function that runs `areal WORDS...` in an empty folder."""
    return areal_command(site, tmp_path)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two versions of the engine and a package it needs, the only one pip looks into."""
    folder = tmp_path / "wheels"
    write_wheel(folder, "tiny-engine", "1.0", "def name(): return 'as published'\n")
    write_wheel(folder, "tiny-engine", "2.0")
    write_wheel(folder, "tiny-part", "0.5")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def locked(wheels: Path) -> Callable[..., str]:
    """Return a function that gives the lines of a lock for pins."""
    return partial(lock_text, wheels)


@pytest.fixture
def publish(wheels: Path) -> Callable[..., None]:
    """Return a function that puts a wheel where pip looks: its name, its version, its source."""
    return partial(write_wheel, wheels)


@pytest.fixture
def recipe(tmp_path: Path, wheels: Path) -> Recipe:
    """Return the recipe of the tiny engine, with one file of its own and one put before another."""
    plugin = tmp_path / "areal_tiny"
    (plugin / "locks").mkdir(parents=True)
    (plugin / "locks/cpu.txt").write_text(
        "# status: tested\n" + lock_text(wheels, "tiny-engine==1.0", "tiny-part==0.5")
    )
    (plugin / "cpu/tiny_engine").mkdir(parents=True)
    (plugin / "cpu/tiny_kernels.py").write_text("FAST = False\n")
    (plugin / "cpu/tiny_engine/__init__.py.prepend").write_text("import tiny_kernels\n")
    return Recipe(
        name="tiny",
        device="cpu",
        engine="tiny_engine",
        plugin="areal-tiny",
        folder=plugin / "locks",
        distribution="tiny-engine",
        python=HERE,
        files="cpu",
    )


@pytest.fixture
def installer() -> Installer:
    """Return this interpreter's pip on environments without one of their own, which are made in no time."""
    return Installer(
        name="pip",
        make=lambda folder, python: [python, "-m", "venv", "--without-pip", str(folder)],
        pip=lambda folder: [sys.executable, "-m", "pip", "--python", str(places.interpreter(folder)), "install"],
        environ={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )


@pytest.fixture
def whole(tmp_path: Path) -> Callable[[Recipe], Path]:
    """Return a function that puts an environment that looks whole where a recipe's belongs, under `envs`."""

    def make(recipe: Recipe) -> Path:
        folder = places.folder_of(recipe.name, recipe.device, tmp_path / "envs")
        places.interpreter(folder).parent.mkdir(parents=True)
        shutil.copy("/bin/true", places.interpreter(folder))
        marker = places.Marker(
            name=recipe.name, device=recipe.device, engine_version="1.0", python=HERE, digest=recipe.digest()
        )
        places.write_marker(folder, marker)
        return folder

    return make
