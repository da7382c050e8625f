"""Checks of the installed packages: the core itself and torch.

Knows: distributions and versions.
Does not know: plugins; imports no package it looks at.
"""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version

from areal_core import __version__
from areal_core.contract.version import CONTRACT
from areal_core.plugins.findings import Finding, Severity
from areal_core.plugins.install import pip_install

MIN_TORCH = "2.11"


def check_packages() -> list[Finding]:
    """Run every check of the packages."""
    installed = _version("torch") if find_spec("torch") else None
    original = check_original(_version("areal"), Path(sys.executable).with_name("areal"))
    return [check_core(_version("areal-core")), *original, check_torch(installed)]


def check_core(installed: str | None) -> Finding:
    """Compare the code that runs with the distribution that is installed; a stale one hides entry points."""
    contracts = sorted({".".join(map(str, version)) for version in CONTRACT.values()})
    what = f"{__version__}, contract {', '.join(contracts)}"
    if installed == __version__:
        return Finding(code="core.version", level=Severity.OK, subject="areal-core", what=what)
    return Finding(
        code="core.version",
        level=Severity.WARNING,
        subject="areal-core",
        what=f"{what}, but the installed metadata says {installed or 'nothing'}",
        fix=pip_install("areal-core", options="--force-reinstall --no-deps"),
    )


def check_original(installed: str | None, command: Path) -> list[Finding]:
    """Tell when the original system is installed as well, and which of the two the command `areal` starts.

    Args:
        installed: the version of the distribution `areal`, None without it.
        command: the script of this environment.
    """
    if installed is None:
        return []
    whose = "missing"
    if command.is_file():
        whose = "this one's" if b"areal_core" in command.read_bytes() else "the other one's"
    return [
        Finding(
            code="core.original",
            level=Severity.WARNING,
            subject="areal",
            what=f"{installed}, another system, is installed as well; the command `areal` is {whose}",
            fix="give each an environment of its own, or start this one with: python -m areal_core.cli.main",
        )
    ]


def check_torch(installed: str | None) -> Finding:
    """Judge the torch of this interpreter; engines under another interpreter have their own."""
    if installed is None:
        return Finding(
            code="core.torch",
            level=Severity.WARNING,
            subject="torch",
            what="not installed; nothing trains in this interpreter",
            fix=pip_install("areal-core[torch]"),
        )
    if Version(installed) < Version(MIN_TORCH):
        return Finding(
            code="core.torch",
            level=Severity.WARNING,
            subject="torch",
            what=f"{installed}, older than {MIN_TORCH}",
            fix=f"pip install -U 'torch>={MIN_TORCH}'",
        )
    return Finding(code="core.torch", level=Severity.OK, subject="torch", what=installed)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
