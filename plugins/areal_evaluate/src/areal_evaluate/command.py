"""`areal evaluate MODEL tasks.yaml`: score a model on benchmarks, shown in the terminal.

Knows: arguments, the terminal, signals, exit codes.
Does not know: what an evaluation is (`run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from areal_core.cli.main import INTERRUPTED
from areal_core.cli.train import interrupts
from areal_core.plugins.registry import Registry, default_registry
from areal_evaluate.config import load_tasks
from areal_evaluate.plan import EvaluationPlan, plan_evaluation
from areal_evaluate.run import Evaluated, Evaluation
from areal_evaluate.summary import table

_TENTHS = 10


def evaluate_command(
    model: Path,
    tasks: Path,
    *overrides: str,
    resume: Annotated[bool, Parameter(help="Go on with the samples in the output folder.")] = False,
    dry_run: Annotated[bool, Parameter(help="Print what would be evaluated and stop; no model is loaded.")] = False,
) -> int:
    """Score a model on benchmarks, with several samples per prompt.

    Exit codes: 0 every sample is there; 130 stopped, what is done is kept.

    Parameters
    ----------
    model:
        A model folder, or a run folder, whose last checkpoint counts.
    tasks:
        The yaml file with the benchmarks.
    overrides:
        Values that replace those of the file: samples=8 rollout.backend=vllm:d2 out=runs/scores
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    registry = default_registry()
    plan = plan_evaluation(model, load_tasks(tasks, overrides), registry)
    _describe(plan, console)
    if dry_run:
        return 0
    try:
        evaluated = asyncio.run(_watched(plan, registry, console, resume=resume))
    except asyncio.CancelledError:
        return INTERRUPTED
    console.print(table(evaluated.scores, evaluated.confidence), soft_wrap=False)
    console.print(f"summary {plan.folder.summary}")
    console.print(f"samples: areal episodes {evaluated.folder} --order worst")
    if evaluated.failed:
        console.print(
            f"{evaluated.failed} samples failed, and their prompts do not count: areal episodes {evaluated.folder} "
            "--fate failed. To make them again: the same command with --resume"
        )
    if not evaluated.finished:
        console.print("stopped; the samples made so far are kept. To go on: the same command with --resume")
    return 0 if evaluated.finished else INTERRUPTED


async def _watched(plan: EvaluationPlan, registry: Registry, console: Console, *, resume: bool) -> Evaluated:
    """Run it, shown in the terminal. The first Ctrl-C ends it with what is done."""
    stop, view = asyncio.Event(), TerminalView(console)
    with interrupts(stop, console, when=""), view.shown():
        return await Evaluation(plan, registry, view=view, stop=stop).execute(resume=resume)


def _describe(plan: EvaluationPlan, console: Console) -> None:
    role = plan.engine.role("rollout")
    console.print(f"{role.model.path}  {role.backend} on {role.device}, {role.dtype}  into {plan.folder.root}")
    for each in plan.benchmarks:
        config, sampling = each.plan.config, each.sampling
        console.print(
            f"  {each.name}: {config.data.name}, {config.rollout.workflow.name}, {config.rollout.reward.name}; "
            f"{each.samples} samples at temperature {sampling.temperature:g}, "
            f"{sampling.max_new_tokens} new tokens at most"
        )
    for warning in plan.warnings:
        console.print(f"warning: {warning}")


class TerminalView:
    """Satisfies `EvaluationView`: a bar per benchmark in a terminal, a line per tenth anywhere else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console) if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}

    def shown(self) -> AbstractContextManager[object]:
        """Return what keeps the bars on the screen."""
        return self._bars or nullcontext()

    def step(self, record: Mapping[str, Any]) -> None:
        """Show nothing: an evaluation has no steps. Any: as in `RunView`."""

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text)

    def waiting(self, what: str) -> None:
        """Print what is waited for."""
        if what != "samples":
            self._console.print(f"waiting for {what}")

    def scored(self, benchmark: str, done: int, of: int, mean: float) -> None:
        """Show how far a benchmark is."""
        if self._bars is not None:
            if benchmark not in self._tasks:
                self._tasks[benchmark] = self._bars.add_task(benchmark, total=of)
            said = f"{benchmark}  mean reward {mean:.3f}"
            self._bars.update(self._tasks[benchmark], completed=done, description=said)
        elif (tenth := _TENTHS * done // of) > self._tenths.get(benchmark, 0):
            self._tenths[benchmark] = tenth
            self._console.print(f"{benchmark}: {done}/{of} samples, mean reward {mean:.3f}")
