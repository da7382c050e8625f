"""Making an environment: every step, and nothing half-made left behind.

    venv -> the lock's packages, without looking at dependencies -> files laid in -> our packages -> check -> marker

Knows: the steps, and how to undo them.
Does not know: what goes in (`recipe`), where it lies (`places`), how it is shown.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from areal_core.contract.errors import ArealError, EngineMissing, StorageError
from areal_serving.environments import lookup, places
from areal_serving.environments.exclusive import exclusive
from areal_serving.environments.installers import Installer
from areal_serving.environments.recipe import Lock, Recipe
from areal_serving.environments.sources import installed_version, pip_arguments

_OURS = ("areal-core", "areal-devices", "areal-torch", "areal-serving")
_TAIL = 12
"""Lines of an installer's output that an error shows."""


@frozen(kw_only=True)
class Step:
    """Where the work is. `detail` is the installer's latest line, empty when a step begins."""

    index: int
    total: int
    what: str
    detail: str = ""


Tell = Callable[[Step], None]


@frozen(kw_only=True)
class Built:
    """What came of a request: `fresh` is False if the environment was there and up to date."""

    folder: Path
    marker: places.Marker
    fresh: bool


def create(
    recipe: Recipe,
    installer: Installer,
    *,
    within: Path | None = None,
    python: str | None = None,
    force: bool = False,
    ours: Sequence[str] | None = None,
    tell: Tell = lambda step: None,
) -> Built:
    """Make the environment of an engine for a device, or say that it is there.

    An environment that is out of date is made anew; it stays in use until the end, and comes back if
    the new one cannot be made.

    Args:
        within: the folder of all environments, the user's own if None.
        python: the interpreter to build with; this one, or one on the PATH of the version that is needed, if None.
        force: recreate it even if it is up to date.
        ours: distributions of ours to install beside the lock; areal-core, the kits and the plugin if None.
        tell: called at every step and for every line of the installer.

    Raises:
        EngineMissing: it cannot be made here; says which step failed and how.
        StorageError: the folder cannot be written.
    """
    lock, digest = recipe.lock(), recipe.digest()
    _check_hashes(recipe, lock)
    folder = places.folder_of(recipe.name, recipe.device, within)
    with exclusive(folder):
        _recover(folder)
        marker = places.read_marker(folder) if places.is_whole(folder) else None
        if marker is not None and not force and not lookup.outdated(recipe, marker):
            return Built(folder=folder, marker=marker, fresh=False)
        base = _base_python(recipe, python)
        packages = (*_OURS, recipe.plugin) if ours is None else tuple(ours)
        with _replacing(folder):
            marker = _build(recipe, lock, digest, folder, base, installer, packages, tell)
    return Built(folder=folder, marker=marker, fresh=True)


def _check_hashes(recipe: Recipe, lock: Lock) -> None:
    bare = [pin for pin in lock.pins if not lock.hashes.get(pin)]
    if bare:
        raise EngineMissing(
            f"the lock of {recipe.name} for {recipe.device} has no hash of {bare[0]}",
            why=f"only files whose hash is in {recipe.lock_file} are installed; {len(bare)} packages have none",
            fix=f"the plugin's maintainers add them: areal env lock {recipe.name} --device {recipe.device} --keep",
        )


def remove(folder: Path) -> None:
    """Delete an environment, whole or half-made.

    Raises:
        EngineMissing: there is none in the folder.
    """
    if places.read_marker(folder) is None and not (folder / "pyvenv.cfg").is_file():
        raise EngineMissing(
            f"{folder} is not an environment made by areal",
            why="it has no areal-env.json and no pyvenv.cfg" if folder.exists() else "there is no such folder",
            fix="areal env list",
        )
    with exclusive(folder):
        shutil.rmtree(folder)


def _build(
    recipe: Recipe,
    lock: Lock,
    digest: str,
    folder: Path,
    base: str,
    installer: Installer,
    ours: Sequence[str],
    tell: Tell,
) -> places.Marker:
    total = 5
    run = _Runner(installer, folder, tell)

    run.begin(Step(index=1, total=total, what=f"creating {folder} with {installer.name}"))
    run(installer.make(folder, base))

    run.begin(Step(index=2, total=total, what=f"installing {len(lock.pins)} packages"))
    # A version like 2.13.0+cpu is on no common index: only for those are the site's further ones asked.
    local = [pin for pin in lock.pins if "+" in pin]
    _install([pin for pin in lock.pins if pin not in local], lock, installer.pip(folder), run)
    _install(local, lock, [*installer.pip(folder), *installer.more], run)

    laid = recipe.laid_files()
    run.begin(Step(index=3, total=total, what=f"copying {len(laid)} file{'s' * (len(laid) != 1)} into site-packages"))
    site = _site_packages(folder)
    for path, content in laid.items():
        _lay(site, path, content)

    run.begin(Step(index=4, total=total, what=f"installing {' and '.join(ours)}"))
    arguments = [word for package in ours for word in pip_arguments(package)]
    if arguments:
        run([*installer.pip(folder), *installer.more, "--no-deps", *arguments])

    run.begin(Step(index=5, total=total, what=f"looking for {recipe.engine}"))
    found = lookup.find(recipe, python=str(places.interpreter(folder)))
    marker = places.Marker(
        name=recipe.name,
        device=recipe.device,
        engine_version=found.engine_version,
        python=recipe.python,
        digest=digest,
        packages={package: installed_version(package) or "" for package in ours},
    )
    places.write_marker(folder, marker)
    return marker


def _install(pins: Sequence[str], lock: Lock, command: Sequence[str], run: _Runner) -> None:
    """Install packages of a lock, every file of which must have a hash of the lock."""
    if pins:
        with tempfile.TemporaryDirectory(prefix="areal-env-") as scratch:
            listed = Path(scratch) / "lock.txt"
            listed.write_text("\n".join(map(lock.line, pins)) + "\n", encoding="utf-8")
            run([*command, "--no-deps", "--require-hashes", "-r", str(listed)])


class _Runner:
    """Runs an installer's commands; every line of theirs is told, the last ones are kept for an error."""

    def __init__(self, installer: Installer, folder: Path, tell: Tell) -> None:
        self._installer = installer
        self._folder = folder
        self._tell = tell
        self._step = Step(index=0, total=0, what="")

    def begin(self, step: Step) -> None:
        self._step = step
        self._tell(step)

    def __call__(self, command: Sequence[str]) -> None:
        tail: deque[str] = deque(maxlen=_TAIL)
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env={**os.environ, **self._installer.environ},
        )
        assert child.stdout is not None
        try:
            for line in filter(None, map(str.strip, child.stdout)):
                tail.append(line)
                step = self._step
                self._tell(Step(index=step.index, total=step.total, what=step.what, detail=line))
        finally:
            if child.poll() is None:
                child.terminate()
            child.wait()
            child.stdout.close()
        if child.returncode != 0:
            raise EngineMissing(
                f"{self._folder} was not created: {self._step.what} failed",
                why="\n       ".join([f"{self._installer.name} ended with {child.returncode}:", *tail]),
                fix="if a version is not found, add the index that has it to pip's configuration; "
                "nothing was left behind, so run the same command again",
            )


def _base_python(recipe: Recipe, python: str | None) -> str:
    """Return the interpreter to build with, of the version and for the machine the lock was made for.

    Raises:
        EngineMissing: there is none.
    """
    machine = recipe.platform.partition("-")[0]
    if machine and machine != platform.machine():
        raise EngineMissing(
            f"the environment of {recipe.name} for {recipe.device} cannot be made on this machine",
            why=f"its lock is for {recipe.platform}, this is {platform.machine()}",
            fix="make an environment by hand and name its interpreter: rollout.options.python=/path/to/bin/python",
        )
    wanted = recipe.python
    here = "{}.{}".format(*sys.version_info)
    if python is None:
        python = sys.executable if wanted in ("", here) else shutil.which(f"python{wanted}")
    if python is None or shutil.which(python) is None:
        raise EngineMissing(
            f"no Python {wanted} to make the environment of {recipe.name} from",
            why=f"its lock is for Python {wanted}, this is {here}",
            fix=f"install Python {wanted} and name it: "
            f"{lookup.create_command(recipe.name, recipe.device)} --python /path/to/python{wanted}",
        )
    version = subprocess.run(
        [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"], capture_output=True, text=True
    ).stdout.strip()
    if wanted and version != wanted:
        raise EngineMissing(
            f"{python} cannot be used for the environment of {recipe.name}",
            why=f"it is Python {version or '?'}, the lock was made for {wanted}",
            fix=f"--python /path/to/python{wanted}",
        )
    return python


@contextmanager
def _replacing(folder: Path) -> Iterator[None]:
    """Give way to a new environment; whatever goes wrong, leave the folder as it was found."""
    previous = _previous(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            folder.rename(previous)
        yield
    except BaseException as exc:
        shutil.rmtree(folder, ignore_errors=True)
        if previous.exists():
            previous.rename(folder)
        if isinstance(exc, OSError) and not isinstance(exc, ArealError):
            raise StorageError(
                f"{folder} cannot be written", why=str(exc), fix="choose another folder: --folder DIR"
            ) from exc
        raise
    shutil.rmtree(previous, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Undo what a build left that was killed."""
    previous = _previous(folder)
    if folder.exists() and not places.is_whole(folder):
        shutil.rmtree(folder)
    if previous.exists():
        if folder.exists():
            shutil.rmtree(previous)
        else:
            previous.rename(folder)


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


def _site_packages(folder: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(places.interpreter(folder)), "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def _lay(site: Path, path: str, content: bytes) -> None:
    """Write one file; one whose name ends in `.prepend` is put before the file it is named after."""
    target = site / path.removesuffix(".prepend")
    if target.name != Path(path).name:
        content += target.read_bytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    # A file of its own, not new content for the old one: installers link files to their cache.
    fresh = target.with_name(f"{target.name}.areal")
    fresh.write_bytes(content)
    fresh.replace(target)
