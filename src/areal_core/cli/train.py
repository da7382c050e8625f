"""`areal train run.yaml a.b=c`: plan a run, show it, run it.

Knows: arguments, the terminal, signals.
Does not know: how training works (`areal_core.loop`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter
from rich.console import Console

from areal_core.cli.main import INTERRUPTED
from areal_core.config.load import load_config, redacted_keys
from areal_core.config.plan import Plan, plan_here
from areal_core.config.schema import RunConfig
from areal_core.contract.errors import ConfigError, RunFolderError
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.extensions import CompleteOverrides, Preview, RunReport, extension
from areal_core.plugins.registry import Registry, default_registry

if TYPE_CHECKING:
    from areal_core.loop.run import RunOutcome


def complete_overrides(context: object) -> Sequence[str]:
    """Return what a shell may complete an override with, none without the package that knows the keys."""
    found: CompleteOverrides | None = extension("complete_overrides")
    return found(context) if found else ()


def train_command(
    config: Path | None = None,
    *overrides: Annotated[str, Parameter(completer=complete_overrides)],
    resume: Annotated[Path | None, Parameter(help="Continue the run in this folder from its last state.")] = None,
    dry_run: Annotated[
        bool, Parameter(help="Print the resolved plan and what the first row becomes, and stop; no model is loaded.")
    ] = False,
    assume: Annotated[
        str, Parameter(help="With --dry-run: plan for another machine, such as cuda:8x80GB or cpu:64GB.")
    ] = "",
    archive: Annotated[
        bool, Parameter(help="Move an earlier run in the folder aside, to <folder>.1, and start.")
    ] = False,
    quiet: Annotated[bool, Parameter(help="Print nothing but errors.")] = False,
) -> int:
    """Train a model from a yaml file.

    Parameters
    ----------
    config:
        The run's yaml file. Optional with --resume, which uses the run's own config.yaml.
    overrides:
        Values that replace those of the file: rollout.max_staleness=0 actor.backend=fsdp:d8
    """
    if config is not None and "=" in str(config) and not config.exists():
        overrides, config = (str(config), *overrides), None
    if config is None and resume is None:
        raise ConfigError("no configuration given", why="areal train needs a yaml file", fix="areal train run.yaml")
    if resume is not None and config is None:
        config = _config_of(resume)
    run = load_config(config, overrides)
    if resume is not None:
        run = attrs.evolve(run, out=str(resume))
        _check_secrets(run, resume)
    if assume and not dry_run:
        raise ConfigError("--assume without --dry-run", why="a run starts on this machine", fix="add --dry-run")
    return train(run, resume=resume is not None, dry_run=dry_run, assume=assume, archive=archive, quiet=quiet)


def _config_of(folder: Path) -> Path:
    path = folder / "config.yaml"
    if not path.is_file():
        raise RunFolderError(
            f"run folder {folder} has nothing to resume",
            why="it holds no config.yaml" if folder.is_dir() else "there is no such folder",
            fix="name the folder a run was started in: areal train --resume DIR",
        )
    return path


def _check_secrets(run: RunConfig, folder: Path) -> None:
    """Refuse to hand `<redacted>` to a tracker as if it were the key."""
    for path in redacted_keys(run):
        raise ConfigError(
            f"the value of {path} is not known",
            why=f"config.yaml of {folder} was written without secrets",
            fix=f"give it again with the run's own file: areal train run.yaml --resume {folder}",
        )


def train(
    run: RunConfig,
    registry: Registry | None = None,
    *,
    resume: bool = False,
    dry_run: bool = False,
    assume: str = "",
    archive: bool = False,
    quiet: bool = False,
) -> int:
    """Plan and run a configuration in this terminal, as `areal train` does. Call it from the main thread.

    Args:
        registry: where plugins are looked up; the process's own if None.
        resume: continue the run in `run.out` from its last checkpoint, or from its beginning.
        dry_run: print the plan and what the first row becomes, and stop.
        assume: of a dry run: the machine to plan for, such as `cuda:8x80GB`; this one if empty.
        archive: move an earlier run in the folder aside instead of refusing.
        quiet: print nothing; errors are raised.

    Returns:
        0 when the run is finished, 130 when it was stopped.
    """
    console = Console(quiet=quiet and not dry_run)
    registry = registry or default_registry()
    plan = plan_here(run, registry, assume)
    preview: Preview | None = extension("preview") if dry_run and not assume else None
    first = preview(plan, registry) if preview else ""
    console.print(str(plan), highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        if resume and (tell := extension("changes")) and (changed := tell(RunFolder.of(run).config, plan.config)):
            console.print(changed, highlight=False, markup=False, soft_wrap=True)
        console.print(first, highlight=False, markup=False, soft_wrap=True, end="\n" if first else "")
        return 0
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            outcome = runner.run(_run(plan, registry, console, resume=resume, archive=archive))
        except asyncio.CancelledError:
            console.print(_how_to_resume(RunFolder.of(plan.config)), markup=False, soft_wrap=True)
            return INTERRUPTED
    return _close(outcome, console)


async def _run(plan: Plan, registry: Registry, console: Console, *, resume: bool, archive: bool) -> RunOutcome:
    stop = asyncio.Event()
    report: RunReport | None = extension("report")
    steps, title, folder = plan.config.steps, plan.config.name, RunFolder.of(plan.config).root
    shown = report and report.view(steps, title=title, folder=folder, console=console)
    with interrupts(stop, console), shown or nullcontext(PlainView(steps, console)) as view:
        from areal_core.loop.run import make_run  # seconds of imports: the view is there before them

        return await make_run(plan, registry, view=view, stop=stop).execute(resume=resume, archive=archive)


@contextmanager
def interrupts(stop: asyncio.Event, console: Console, *, when: str = " after this step") -> Iterator[None]:
    """First Ctrl-C: stop, `when` tells, save, close. Second: close at once. Third: be gone. SIGTERM counts as one."""
    loop, main, count = asyncio.get_running_loop(), asyncio.current_task(), itertools.count(1)

    def wind_down() -> None:
        console.print(f"stopping{when}; press Ctrl-C again to stop at once")
        stop.set()

    def interrupted(*_: object) -> None:  # called by Python itself, also while something blocks the event loop
        if (number := next(count)) > 2:
            os.write(1, b"\x1b[?25h" if console.is_terminal else b"")  # the cursor is back
            os._exit(INTERRUPTED)  # whoever this process started ends with it
        loop.call_soon_threadsafe(wind_down if number == 1 or main is None else main.cancel)

    with ExitStack() as before:
        for each in (signal.SIGINT, signal.SIGTERM):
            before.callback(signal.signal, each, signal.signal(each, interrupted))
        yield


def _close(outcome: RunOutcome, console: Console) -> int:
    """Say what there is to see, and where, and return the exit code."""
    folder = outcome.folder
    report: RunReport | None = extension("report")
    words = report.closing(folder) if report else f"metrics {folder.metrics}"
    console.print(words, highlight=False, markup=False, soft_wrap=True)
    if not outcome.finished:
        console.print(_how_to_resume(folder), markup=False, soft_wrap=True)
    return 0 if outcome.finished else INTERRUPTED


def _how_to_resume(folder: RunFolder) -> str:
    how = folder.how_to_go_on()
    return f"stopped; {how}" if how else "stopped before its beginning; start the run again"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class PlainView:
    """Satisfies `areal_core.plugins.extensions.RunView`, where no report shows a run."""

    def __init__(self, steps: int, console: Console) -> None:
        self._steps = steps
        self.note = partial(console.print, markup=False, highlight=False, soft_wrap=True)

    def step(self, record: Mapping[str, Any]) -> None:
        """Print every tenth step, and the last. Any: as in `metrics.jsonl`."""
        step = int(record["step"])
        if step % 10 == 0 or step == self._steps:
            told = next(name for name in ("reward", "loss") if name in record)
            self.note(f"step {step}/{self._steps}  {told} {record[told]:.3f}")

    def waiting(self, what: str) -> None:
        """Print nothing: a line several times a step is too much."""
