"""The ecosystem's packages, for tests: each set of them in a Python environment of its own, for they cannot share one.

What a run imports is laid over the environment of the developers; what only serves or writes environments stands alone.

Knows: which packages go together, and where they are.
Does not know: what is tested with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from attrs import frozen
from packaging.requirements import Requirement

FOLDER = "AREAL_ENVIRONMENTS"
"""The variable that names the folder; `.venv-environments` is the one of `make test-environments`."""
_OVER = "import site; site.addsitedir({!r})\n"


@frozen(kw_only=True)
class Packages:
    """One environment.

    Example: Packages(extras=["openenv"], more=["verifiers<0.4", "uv"], alone=False)
    """

    extras: Sequence[str]
    """Extras of areal-environments whose requirements are installed."""
    more: Sequence[str] = ()
    """Further requirements: bounds of those, and packages that only tests need."""
    alone: bool
    """Whether it needs nothing of this project, but a newer Python."""


SETS = {
    "verifiers-0.3": Packages(extras=["openenv"], more=["verifiers<0.4", "uv"], alone=False),
    "verifiers-0.4": Packages(extras=["verifiers"], more=["verifiers>=0.4", "uv"], alone=False),
    "harbor": Packages(extras=["harbor"], more=["terminal-bench"], alone=True),
    "nemo-gym": Packages(extras=["nemo-gym"], alone=True),
}


def interpreter(name: str) -> str:
    """Return the path of the Python of one environment.

    Raises:
        FileNotFoundError: it is not made yet.
    """
    path = Path(os.environ.get(FOLDER, ".venv-environments")).absolute() / name / "bin" / "python"
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; `make test-environments` makes it")
    return str(path)


def make(folder: Path, newer: str) -> None:
    """Make every environment that is not there; `newer` is the Python of those that stand alone, 3.12 or more.

    Raises:
        CalledProcessError: there is no such Python, or packages cannot be installed.
    """
    for name, packages in SETS.items():
        done = folder / name / ".installed"
        if done.exists():
            continue
        _run([newer if packages.alone else sys.executable, "-m", "venv", "--clear", str(folder / name)])
        python = folder / name / "bin" / "python"
        if not packages.alone:
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            over = folder / name / "lib" / version / "site-packages" / "over.pth"
            over.write_text(_OVER.format(sysconfig.get_path("purelib")))
        _run([str(python), "-m", "pip", "install", "--quiet", *packages.more, *_required(packages.extras)])
        done.touch()


def _required(extras: Sequence[str]) -> list[str]:
    """Return what extras of this distribution require, whichever Python they are for."""
    required = map(Requirement, metadata.requires("areal-environments") or ())
    taken = [
        each for each in required if each.marker and any(f'extra == "{name}"' in str(each.marker) for name in extras)
    ]
    return [f"{each.name}{each.specifier}" for each in taken]


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)
