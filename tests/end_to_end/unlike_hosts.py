"""Machines that are unlike the others of a cluster, as one of many may be: what starts Ray on them.

    ray_hosts(network, folder, unlike={2: another_version(folder, "areal-ray", "0.0.1"), 3: without(folder / "envs")})

Knows: Python's search path, namespaces of mounts and of clocks.
Does not know: what notices.
"""

from __future__ import annotations

import os
from pathlib import Path

MONOTONIC_S = 1_000_000
"""How much longer than the others a machine of another clock has been up."""
_CLOCK = """
import time
_time = time.time
time.time = lambda: _time() + {ahead_s}
"""
_MISSING = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Finder())
"""


def another_version(folder: Path, package: str, version: str) -> list[str]:
    """A package says there that it has another version."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return _with_path(folder)


def without_package(folder: Path, package: str) -> list[str]:
    """A package is not there for Python."""
    return _at_start(folder, _MISSING.format(package=package))


def with_clock(folder: Path, ahead_s: float) -> list[str]:
    """The time of day is another one there for Python, and the machine has been up for longer."""
    return ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(MONOTONIC_S), *_at_start(
        folder, _CLOCK.format(ahead_s=ahead_s)
    )]  # fmt: skip


def without_folder(folder: Path) -> list[str]:
    """A folder is empty there."""
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs {folder} && exec "$@"', "sh"]


def _at_start(folder: Path, code: str) -> list[str]:
    """Have every Python there run something first."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(code)
    return _with_path(folder)


def _with_path(folder: Path) -> list[str]:
    return ["env", f"PYTHONPATH={':'.join(filter(None, (str(folder), os.environ.get('PYTHONPATH'))))}"]
