"""Train again on the episodes of a run, from Python: `replay("runs/quickstart").divergence is None`.

Knows: the order of a replay.
Does not know: arguments and the terminal (`replay_command`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.algorithms.plan import objective_spec
from areal_core.config.plan import Plan, make_plan
from areal_core.contract.errors import PlanError
from areal_core.plugins.devices import count_visible
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry, default_registry
from areal_episodes.replaying.comparison import Comparison, Divergence
from areal_episodes.replaying.plan import ReplayPlan, plan_replay
from areal_episodes.replaying.run import ReplayRun


@frozen(kw_only=True)
class Replayed:
    """How a replay ended. It has a run folder of its own, with metrics, checkpoints and report.

    Example: Replayed(folder=Path("runs/quickstart-replay"), finished=True, compared=80, divergence=None)
    """

    folder: Path
    finished: bool
    """Whether it came to its last step; not if it was stopped or diverged."""
    compared: int
    """Steps whose numbers are those of the run, bit for bit; 0 with overrides."""
    divergence: Divergence | None
    """The first number that is another, where nothing was overridden."""


def replay(
    folder: str | Path,
    overrides: Sequence[str] = (),
    *,
    from_step: int | None = None,
    to_step: int | None = None,
    out: str | Path | None = None,
) -> Replayed:
    """Train on what a run was trained on, in the same steps, without an inference engine.

    Without overrides every step is compared with the run's own, and the first difference ends the replay. With some
    it is an experiment: another algorithm, objective or learning rate on the same episodes.

    Args:
        folder: of the run; it may still go on.
        overrides: `a.b=c`, as of `areal train`.
        from_step: begin with the last checkpoint up to this step; None begins with the starting weights.
        to_step: the last step to replay; None takes all there are.
        out: the folder of the replay; None takes `<folder>-replay` and moves an earlier one aside.

    Raises:
        ConfigError, RunFolderError: there is no such run, or an override is without effect.
        StorageError: not every step asked for is whole in the store; the first error of any part.
    """
    place = None if out is None else Path(out)
    planned = plan_replay(Path(folder), overrides, from_step=from_step, to_step=to_step, out=place)
    registry = default_registry()
    plan = resolve(planned, registry)
    run = execute(planned, plan, registry, view=_Nobody(), stop=asyncio.Event(), archive=out is None)
    return asyncio.run(run)


def resolve(planned: ReplayPlan, registry: Registry) -> Plan:
    """Return the plan of a replay: its training roles on the devices that are here.

    Raises:
        PlanError: what the run learned from was told by somebody who is no training role.
    """
    for file in planned.config.imports:
        registry.add_file(Path(file))
    plan = make_plan(planned.config, registry, count_visible(registry, os.environ), generating=False)
    algorithm, sampling = plan.config.algorithm, plan.config.rollout.sampling
    judged = algorithm.advantages.kl.coefficient != 0.0 and plan.config.reference is None
    if judged or plan.objective != objective_spec(algorithm, sampling.max_new_tokens):
        raise PlanError(
            f"a run of kind {plan.config.kind} with these options cannot be replayed",
            why="what its teacher told of the tokens is not among its episodes",
            fix="name the teacher as a training role, options.teacher, without options.top_k",
        )
    return plan


async def execute(
    planned: ReplayPlan, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event, archive: bool
) -> Replayed:
    """Run a replay to its end, the first difference, or until `stop`."""
    comparison = Comparison(view, planned.steps, stop.set)
    watcher = view if planned.overridden else comparison
    run = ReplayRun(plan, registry, view=watcher, stop=stop, of=planned.of)
    outcome = await run.execute(archive=archive, start=planned.checkpoint)
    return Replayed(
        folder=outcome.folder.root,
        finished=outcome.finished and comparison.divergence is None,
        compared=comparison.compared,
        divergence=comparison.divergence,
    )


class _Nobody:
    """A `RunView` for programs."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Show nothing. Any: what `metrics.jsonl` got."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def waiting(self, what: str) -> None:
        """Show nothing."""
