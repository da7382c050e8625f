"""Evaluate a model from Python: `evaluate("runs/quickstart", "tasks.yaml").scores["spell"].metrics["pass@1"].value`.

Knows: the order of an evaluation, and that a notebook has an event loop of its own.
Does not know: arguments and the terminal (`command`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import evolve

from areal_core.plugins.registry import default_registry
from areal_evaluate.config import load_tasks
from areal_evaluate.plan import plan_evaluation
from areal_evaluate.run import Evaluated, Evaluation


def evaluate(
    model: str | Path,
    tasks: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
) -> Evaluated:
    """Score a model on benchmarks. Works in a script and in a notebook; Ctrl-C keeps what is done.

    Args:
        model: a model folder, or a run folder, whose last checkpoint counts.
        tasks: a yaml file, or what stands in one as a mapping. Any: plain data.
        overrides: `a.b=c`, as of `areal evaluate`.
        out: the output folder; None takes `out` of the tasks, or `runs/<name>`.
        resume: make only the samples that the output folder lacks.

    Raises:
        ConfigError, PluginError, ResourceError: something cannot work; nothing was started.
        RunFolderError: the output folder holds samples and `resume` is False, or samples of something else.
        ArealError: the first error of any part; samples made before stay.
    """
    config = load_tasks(tasks, overrides)
    if out is not None:
        config = evolve(config, out=str(out))
    registry = default_registry()
    plan = plan_evaluation(model, config, registry)
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop, stop = runner.get_loop(), asyncio.Event()

    def run() -> Evaluated:
        with runner:
            return runner.run(Evaluation(plan, registry, view=Nobody(), stop=stop).execute(resume=resume))

    with ThreadPoolExecutor(1, "evaluation") as thread:  # here a loop may be running
        outcome = thread.submit(run)
        try:
            return outcome.result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(stop.set)
            raise


class Nobody:
    """An `EvaluationView` for programs."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Show nothing. Any: as in `RunView`."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def waiting(self, what: str) -> None:
        """Show nothing."""

    def scored(self, benchmark: str, done: int, of: int, mean: float) -> None:
        """Show nothing."""
