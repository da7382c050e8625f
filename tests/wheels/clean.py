"""A clean environment: wheels of ours, the third-party packages of this interpreter, and nothing of the repository.

Knows: how wheels are built and installed without an index.
Does not know: what is run there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
PROJECTS = sorted(
    path.parent
    for pattern in ("", "kits/*/", "plugins/*/", "conformance/", "conformance/proof/")
    for path in ROOT.glob(f"{pattern}pyproject.toml")
)
_LEFT_OUT = ("areal", "_editable", "__editable__", "_areal", "easy-install", "bin", "__pycache__")


def name_of(project: Path) -> str:
    """Return the distribution a folder builds."""
    name: str = tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"]
    return name


def build(projects: Iterable[Path], into: Path) -> None:
    """Build one wheel of every folder with the hatchling of this interpreter; no index is asked."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    _run([*command, "--disable-pip-version-check", "--wheel-dir", str(into), *map(str, projects)], cwd=into.parent)


@frozen
class Clean:
    """An environment in a folder outside the repository."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, *, without: tuple[str, ...] = ()) -> Clean:
        """Create it with the third-party packages of this interpreter but those whose names begin so."""
        venv.create(folder / "venv", with_pip=False)
        (folder / "third-party").mkdir()
        (packages,) = (folder / "venv/lib").glob("python*/site-packages")
        (packages / "third-party.pth").write_text(f"{folder / 'third-party'}\n")
        clean = cls(folder)
        clean.link(without=without)
        return clean

    def link(self, *, without: tuple[str, ...] = ()) -> None:
        """Link the third-party packages it does not have yet, one by one."""
        others = self.folder / "third-party"
        for site in (Path(entry) for entry in sys.path if any(Path(entry).glob("*.dist-info"))):
            for item in site.iterdir():
                link = others / item.name
                if not item.name.startswith((*_LEFT_OUT, *without)) and item.suffix != ".pth" and not link.exists():
                    link.symlink_to(item)

    def install(self, *wheels: Path, replace: bool = False) -> None:
        """Install wheels with the pip of this interpreter: no index, and nothing they depend on."""
        again = ["--force-reinstall"] if replace else []
        self.pip("install", "--no-deps", *again, *map(str, wheels))

    def pip(self, command: str, *words: str) -> None:
        """Run a command of this interpreter's pip on the environment, without an index."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder / "venv/bin/python"), command, "--quiet"]
        _run([*pip, "--no-index", "--disable-pip-version-check", *words], cwd=self.folder)

    def run(self, *words: str, expected: int | None = 0, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in its folder, with no path to the repository, and check its exit code."""
        program = self.folder / "venv/bin" / words[0]
        dropped = ("PYTHONPATH", "AREAL_PLUGINS", "VIRTUAL_ENV")
        environ = {key: value for key, value in os.environ.items() if key not in dropped}
        environ |= {"PATH": f"{program.parent}{os.pathsep}{environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        done = subprocess.run(
            [str(program), *words[1:]], cwd=self.folder, env=environ, capture_output=True, text=True, timeout=timeout
        )
        assert expected in (None, done.returncode), f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done


def _run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
