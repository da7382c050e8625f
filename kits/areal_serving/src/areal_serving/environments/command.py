"""`areal env`: environments for engines that need one of their own.

Knows: arguments, and how progress looks on a terminal and in a log.
Does not know: how an environment is made (`areal_serving.environments`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from areal_core.contract.device import CPU
from areal_core.plugins.devices import device_named, seen_kinds
from areal_core.plugins.registry import default_registry
from areal_serving.environments import build, locking, lookup, places
from areal_serving.environments.installers import choose_installer
from areal_serving.environments.inventory import environments, recipe_for

OnDevice = Annotated[str | None, Parameter(help="cpu, cuda, ...; default: that of this machine")]
Within = Annotated[Path | None, Parameter(help="folder of environments; default: $AREAL_ENVS or in the user's data")]

app = App(name="env", help="Create and list environments for inference engines.", help_format="plaintext")


@app.command
def create(
    name: str,
    *,
    device: OnDevice = None,
    folder: Within = None,
    python: Annotated[str | None, Parameter(help="the interpreter to build with")] = None,
    force: Annotated[bool, Parameter(negative=(), help="recreate it even if it is up to date")] = False,
) -> int:
    """Create an engine's environment, with the versions its plugin was tested with.

    Args:
        name: An inference backend: vllm, sglang.
    """
    recipe = recipe_for(default_registry(), *_target(name, device))
    begun = time.monotonic()
    with _progress() as tell:
        built = build.create(recipe, choose_installer(), within=folder, python=python, force=force, tell=tell)
    engine = f"{recipe.name} {built.marker.engine_version} for {recipe.device}"
    if built.fresh:
        print(f"created {built.folder}: {engine}, in {_elapsed(time.monotonic() - begun)}")
    else:
        print(f"nothing to do: {built.folder} has {engine}, up to date")
    status = recipe.lock().facts.get("status", "")
    if status.startswith("unverified"):
        print(f"note: this set of packages is {status}")
    if folder is not None and folder.absolute() != places.root():
        print(f"runs find it with: export {places.ROOT_VARIABLE}={folder.absolute()}")
    return 0


@app.command(name="list")
def list_(*, folder: Within = None) -> int:
    """List existing environments."""
    found = environments(default_registry(), folder)
    if not found:
        print(f"none in {folder or places.root()}; make one with: areal env create NAME")
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "device", "engine", "state", "folder"):
        table.add_column(column, no_wrap=True)
    for each in found:
        version = each.engine_version or "?"
        table.add_row(each.name, each.device, version, str(each.state), escape(str(each.folder)))
    console = Console()
    console.print(table, soft_wrap=True)
    for each in found:
        if each.state != "ok":
            why = f": {each.why}" if each.why else ""
            fix = lookup.create_command(each.name, each.device)
            console.print(f"{each.folder.name} is {each.state}{why}; {fix}", soft_wrap=True, highlight=False)
    return 0


@app.command
def remove(name: str, *, device: OnDevice = None, folder: Within = None) -> int:
    """Delete an environment.

    Args:
        name: As `areal env list` shows it: vllm, or vllm-cpu.
    """
    target = places.folder_of(*_target(name, device), within=folder)
    build.remove(target)
    print(f"removed {target}")
    return 0


@app.command
def path(name: str, *, device: OnDevice = None, folder: Within = None) -> int:
    """Print the interpreter that would run an engine.

    Args:
        name: As `areal env list` shows it: vllm, or vllm-cpu.
    """
    environ = None if folder is None else {places.ROOT_VARIABLE: str(folder.absolute())}
    found = lookup.find(recipe_for(default_registry(), *_target(name, device)), environ=environ)
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(found.path)
    return 0


@app.command
def lock(
    name: str,
    *,
    device: OnDevice = None,
    keep: Annotated[bool, Parameter(negative=(), help="keep all versions, and look up their hashes again")] = False,
) -> int:
    """Resolve an engine's packages again and write its plugin's lock file; for plugin maintainers.

    Args:
        name: An inference backend: vllm, sglang.
    """
    recipe = recipe_for(default_registry(), *_target(name, device))
    pins = locking.write(recipe, keep=keep).pins
    print(f"wrote {recipe.lock_file}: {len(pins)} packages")
    return 0


def _target(name: str, device: str | None) -> tuple[str, str]:
    """Return engine and device of `vllm`, of `vllm-cpu` or of `vllm` with a device."""
    registry = default_registry()
    engine, told = places.split_name(name, registry.names("device"))
    if device is not None:
        device_named(registry, device)
    return engine, device or told or min(seen_kinds(registry) - {CPU}, default=CPU)


@contextmanager
def _progress() -> Iterator[build.Tell]:
    """Show the step, the time it has taken, and what the installer does: one live line, or a line per step."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().tell
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[detail]}"),
    )
    with Progress(*columns, console=console) as progress:
        current = progress.add_task("", total=None, detail="")

        def tell(step: build.Step) -> None:
            nonlocal current
            title = f"[{step.index}/{step.total}] {step.what}"
            if not step.detail:
                progress.update(current, total=1, completed=1, detail="")
                current = progress.add_task(escape(title), total=None, detail="")
            else:
                progress.update(current, detail=escape(step.detail[: max(20, console.width - len(title) - 16)]))

        yield tell


class _Lines:
    """Progress for a log: every step, and at most one line of the installer in ten seconds."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._begun = self._told = time.monotonic()

    def tell(self, step: build.Step) -> None:
        now = time.monotonic()
        if step.detail and now - self._told < self._every_s:
            return
        self._told = now
        what = step.detail or step.what
        print(f"[{step.index}/{step.total}] {_elapsed(now - self._begun)} {what}", file=sys.stderr, flush=True)


def _elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
