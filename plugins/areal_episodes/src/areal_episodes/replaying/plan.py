"""From a run folder to what a replay of it needs: its configuration, the steps that are whole, the checkpoint.

Knows: which settings of a run mean nothing without generating, and what a store must still hold.
Does not know: how a replay runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from attrs import frozen

from areal_core.config.load import load_config, redacted_keys
from areal_core.config.placement import PlacementConfig
from areal_core.config.schema import EvaluationConfig, RoleConfig, RunConfig, WeightSyncConfig
from areal_core.contract.errors import ConfigError, RunFolderError, StorageError
from areal_core.loop.run_folder import RunFolder
from areal_episodes.reader import Reader
from areal_episodes.replaying.run_steps import RunSteps

_INSTEAD = {"steps": "--to-step N", "out": "--out DIR"}
_WITHOUT_EFFECT = ("rollout", "data", "evaluation", "episodes", "weight_sync")


@frozen(kw_only=True)
class ReplayPlan:
    """What is replayed: the steps after `first` up to `last`, from `checkpoint`, None for the starting weights."""

    config: RunConfig
    of: Path
    first: int
    last: int
    checkpoint: Path | None
    overridden: bool
    steps: RunSteps
    """The run's own numbers of those steps."""


def plan_replay(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    from_step: int | None = None,
    to_step: int | None = None,
    out: Path | None = None,
) -> ReplayPlan:
    """Read a run folder.

    Args:
        overrides: `a.b=c`, another algorithm or learning rate for example.
        from_step: begin with the last checkpoint up to this step; None begins with the starting weights.
        to_step: the last step to replay; None takes all there are.
        out: the folder of the replay; None takes `<folder>-replay`.

    Raises:
        ConfigError, RunFolderError: there is no such run, or an override is without effect.
        StorageError: not every step asked for is whole in the store.
    """
    run = RunFolder(folder)
    config = _config(run, overrides)
    steps = RunSteps(run.metrics)
    with Reader(run.root) as reader:
        counts = reader.steps()
    whole = [step for step, episodes in sorted(steps.episodes.items()) if counts.get(step) == episodes]
    checkpoint = _checkpoint(run, from_step)
    first = _version(checkpoint) if checkpoint else 0
    last = to_step if to_step is not None else _end_of(whole, first)
    missing = sorted(set(range(first + 1, last + 1)) - set(whole))
    if missing or last <= first:
        raise _not_whole(run, first, last, whole)
    root = RunFolder(out or run.root.with_name(f"{run.root.name}-replay")).root
    if root == run.root:
        raise ConfigError(f"--out is {root}, the run itself", why="a replay is a run of its own", fix="name another")
    return ReplayPlan(
        config=attrs.evolve(_until(config, last), name=f"{config.name}-replay", out=str(root)),
        of=run.root,
        first=first,
        last=last,
        checkpoint=checkpoint,
        overridden=bool(overrides),
        steps=steps,
    )


def _config(run: RunFolder, overrides: Sequence[str]) -> RunConfig:
    """Return the run's configuration without what only a run that generates needs."""
    if not run.config.is_file():
        raise RunFolderError(
            f"run folder {run.root} has nothing to replay",
            why="it holds no config.yaml" if run.root.is_dir() else "there is no such folder",
            fix="name the folder a run was started in: areal replay DIR",
        )
    for override in overrides:
        key = override.partition("=")[0].partition(".")[0]
        if key in _INSTEAD:
            raise ConfigError(f"{override} is no setting of a replay", fix=f"use {_INSTEAD[key]}")
        if key in _WITHOUT_EFFECT:
            raise ConfigError(
                f"{override} has no effect in a replay",
                why="nothing is generated: prompts, answers and rewards are those of the run",
                fix="change algorithm, actor, critic or reference, or train a new run",
            )
    config = load_config(run.config, overrides)
    loggers = config.loggers if any(override.startswith("loggers") for override in overrides) else ()
    config = attrs.evolve(
        config,
        loggers=loggers,
        evaluation=EvaluationConfig(),
        weight_sync=WeightSyncConfig(timeout_s=config.weight_sync.timeout_s),
        rollout=attrs.evolve(config.rollout, placement=PlacementConfig()),
    )
    for path in redacted_keys(config):
        if path.partition(".")[0] not in _WITHOUT_EFFECT:
            raise ConfigError(
                f"the value of {path} is not known",
                why=f"config.yaml of {run.root} was written without secrets",
                fix=f"give it again: areal replay {run.root} {path}=VALUE",
            )
    return config


def _until(config: RunConfig, last: int) -> RunConfig:
    """Return a configuration that ends at a step with the learning rates of the whole run."""
    total = config.steps * config.algorithm.updates

    def kept(role: RoleConfig) -> RoleConfig:
        optimizer = role.optimizer
        return attrs.evolve(role, optimizer=attrs.evolve(optimizer, total_steps=optimizer.total_steps or total))

    critic = None if config.critic is None else kept(config.critic)
    return attrs.evolve(config, steps=last, actor=kept(config.actor), critic=critic)


def _checkpoint(run: RunFolder, from_step: int | None) -> Path | None:
    """Return the last checkpoint up to a step, None if there is none or none is asked for."""
    return next((path for path in reversed(run.checkpoints()) if _version(path) <= (from_step or 0)), None)


def _version(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _end_of(whole: Sequence[int], first: int) -> int:
    """Return the last step that can be reached after `first`."""
    last, there = first, set(whole)
    while last + 1 in there:
        last += 1
    return last if last > first else max(first + 1, max(whole, default=0))


def _not_whole(run: RunFolder, first: int, last: int, whole: Sequence[int]) -> StorageError:
    checkpoints = ", ".join(str(_version(path)) for path in run.checkpoints()) or "none"
    return StorageError(
        f"steps {first + 1} to {last} of {run.root} cannot be replayed",
        why=f"whole in its store: {_ranges(whole)}; checkpoints: {checkpoints}",
        fix="begin at a checkpoint with --from-step, end sooner with --to-step; episodes.keep bounds what a run keeps",
    )


def _ranges(steps: Iterable[int]) -> str:
    """Return `steps 1 to 8, 12 to 20`."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return "steps " + ", ".join(f"{low} to {high}" for low, high in ranges) if ranges else "no step"
