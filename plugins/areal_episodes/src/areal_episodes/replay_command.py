"""`areal replay RUN a.b=c`: train again on the episodes of a run, and say where the numbers part.

Knows: arguments, the terminal, signals, exit codes.
Does not know: what a replay is (`areal_episodes.replay`).
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from areal_core.cli.main import INTERRUPTED
from areal_core.cli.train import PlainView, interrupts
from areal_core.config.plan import Plan
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.extensions import RunReport, extension
from areal_core.plugins.registry import Registry, default_registry
from areal_episodes.replay import Replayed, execute, resolve
from areal_episodes.replaying.plan import ReplayPlan, plan_replay


def replay_command(
    run_folder: Path,
    *overrides: str,
    from_step: Annotated[int | None, Parameter(help="Begin with the last checkpoint up to this step.")] = None,
    to_step: Annotated[int | None, Parameter(help="The last step to replay.")] = None,
    out: Annotated[Path | None, Parameter(help="Its own folder; RUN-replay if none is named.")] = None,
    quiet: Annotated[bool, Parameter(help="Print nothing but errors; the exit code says how it ended.")] = False,
) -> int:
    """Train again on the episodes of a run, without generating, and compare every step.

    Exit codes: 0 every step is the same, or was made with overrides; 1 the numbers part; 130 stopped.

    Parameters
    ----------
    run_folder:
        The folder the run wrote into.
    overrides:
        Values that replace those of the run, for an experiment on its episodes: actor.optimizer.lr=1e-5
    """
    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    planned = plan_replay(run_folder, overrides, from_step=from_step, to_step=to_step, out=out)
    registry = default_registry()
    plan = resolve(planned, registry)
    console.print(str(plan))
    console.print(f"replaying steps {planned.first + 1} to {planned.last} of {planned.of}")
    try:
        replayed = asyncio.run(_watched(planned, plan, registry, console, archive=out is None))
    except asyncio.CancelledError:
        return INTERRUPTED
    return _tell(replayed, planned, console)


async def _watched(planned: ReplayPlan, plan: Plan, registry: Registry, console: Console, *, archive: bool) -> Replayed:
    """Run it, shown in the terminal. Ctrl-C ends it as it ends `areal train`."""
    stop = asyncio.Event()
    report: RunReport | None = extension("report")
    steps, title, folder = plan.config.steps, plan.config.name, RunFolder.of(plan.config).root
    shown = report and report.view(steps, title=title, folder=folder, console=console)
    with interrupts(stop, console), shown or nullcontext(PlainView(steps, console)) as view:
        return await execute(planned, plan, registry, view=view, stop=stop, archive=archive)


def _tell(replayed: Replayed, planned: ReplayPlan, console: Console) -> int:
    """Say how it ended; return the exit code."""
    console.print(f"its own folder: {replayed.folder}")
    if replayed.divergence is not None:
        console.print(f"the first difference: {replayed.divergence}")
        return 1
    if not planned.overridden:
        same = f"steps {planned.first + 1} to {planned.first + replayed.compared}"
        console.print(f"{same}: losses, gradient norms and weights are those of the run, bit for bit")
    return 0 if replayed.finished else INTERRUPTED
