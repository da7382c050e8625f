"""Kind `online`: a run whose prompts come from outside clients, who also tell the rewards.

All else is an asynchronous run: staleness, weights, checkpoints, resume. One session is one group of one episode, so
advantages are normalised over the batch unless `algorithm` says otherwise.

Knows: which keys of a run this is.
Does not know: how clients are served (`run`), which takes seconds to import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import evolve

from areal_agents.serve.config import KEY_FILE, OnlineConfig
from areal_core.algorithms.config import (
    GROUP_ESTIMATORS,
    AdvantageConfig,
    AlgorithmConfig,
    EstimatorConfig,
    NormConfig,
    NormLevel,
)
from areal_core.config.plan import Plan, make_plan
from areal_core.config.schema import (
    RL,
    DataConfig,
    EvaluationConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    WorkflowConfig,
)
from areal_core.contract.errors import PlanError, UnknownKey
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry

if TYPE_CHECKING:
    from areal_core.loop.run import Run

_DATA = DataConfig(name="clients", shuffle=False)
_WORKFLOW = WorkflowConfig(name="online")
_PATIENCE_S = 1e9
"""An episode waits for a client as long as a run may last; `session_timeout_s` bounds the session then."""
_ESTIMATOR = EstimatorConfig(name="reinforce++")
_PROGRESS = "progress_timeout_s"
_PLANNED = RewardConfig(name="exact_match")
"""Stands in while planning, which asks for a reward function; no run of this kind calls one."""


class Online:
    """A run of reinforcement learning on whoever comes."""

    def __init__(self, config: OnlineConfig) -> None:
        self._config = config

    def plan(
        self, config: RunConfig, registry: Registry, devices: Mapping[str, int], *, installed: bool = True
    ) -> Plan:
        """Return the plan; `installed` as of `make_plan`.

        Raises:
            PlanError: a key is set that means nothing where clients bring prompts and rewards.
            ConfigError, PluginError, ResourceError: as `make_plan`.
        """
        whole = _patient(_whole(config), registry)
        judged = evolve(whole, kind=RL, options={}, rollout=evolve(whole.rollout, reward=_PLANNED))
        plan = make_plan(judged, registry, devices, installed=installed)
        rollout = evolve(plan.config.rollout, reward=RewardConfig())
        kept = evolve(plan.config, kind=config.kind, options=config.options, rollout=rollout)
        return evolve(plan, config=kept, warnings=(*plan.warnings, *self._warnings(kept)))

    def preview(self, plan: Plan) -> str:
        """Return what `areal train --dry-run` tells in place of a first row."""
        where = f"{self._config.host}:{self._config.port or 'a free port'}"
        return f"clients   come to {where} with the key in {RunFolder.of(plan.config).root / KEY_FILE}"

    def run(self, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event) -> Run:
        """Return the run of a plan."""
        from areal_agents.serve.run import OnlineRun

        return OnlineRun(plan, registry, self._config, view=view, stop=stop)

    def _warnings(self, config: RunConfig) -> list[str]:
        host, told = self._config.host, []
        if self._config.beyond_loopback:
            open_to = "other machines may come in, and keys travel unencrypted; put a proxy with TLS in front"
            told.append(f"options.host={host}: {open_to}")
        if silence := config.scheduler.options.get(_PROGRESS):
            told.append(f"scheduler.options.{_PROGRESS}={silence}: without clients for so long the run starts again")
        return told


def _patient(config: RunConfig, registry: Registry) -> RunConfig:
    """Return the run with a scheduler to which waiting for clients is no standstill, where it says when one is.

    Every call of a worker has a deadline of its own.
    """
    scheduler = config.scheduler
    options = {_PROGRESS: 0.0, **scheduler.options}
    try:
        registry.options("scheduler", scheduler.backend, options, "scheduler.options")
    except UnknownKey:
        return config
    return evolve(config, scheduler=evolve(scheduler, options=options))


def _whole(config: RunConfig) -> RunConfig:
    """Return the run with the keys that make it one of clients; those of a resolved run are there already."""
    _check_free(config)
    rollout = evolve(config.rollout, workflow=_WORKFLOW, group_size=1, episode_timeout_s=_PATIENCE_S)
    return evolve(config, data=_DATA, rollout=rollout, algorithm=_alone(config))


def _check_free(config: RunConfig) -> None:
    """Refuse keys that nobody would read, all at once."""
    rollout, default = config.rollout, RolloutConfig()
    alone = "a session is a group of its own"
    given: list[tuple[str, object, tuple[object, ...], str]] = [
        ("data", config.data, (DataConfig(), _DATA), "prompts come from clients"),
        ("evaluation", config.evaluation, (EvaluationConfig(),), "there are no held-out prompts"),
        ("rollout.workflow", rollout.workflow, (default.workflow, _WORKFLOW), "the session of a client is an episode"),
        ("rollout.reward", rollout.reward, (default.reward,), "clients tell the rewards"),
        ("rollout.accept", rollout.accept, (default.accept,), alone),
        ("rollout.group_size", rollout.group_size, (default.group_size, 1), alone),
        (
            "rollout.episode_timeout_s",
            rollout.episode_timeout_s,
            (default.episode_timeout_s, _PATIENCE_S),
            "an episode waits for its client, and options.session_timeout_s bounds the session",
        ),
    ]
    refused = [(key, why) for key, found, free, why in given if found not in free]
    if refused:
        keys = ", ".join(key for key, _ in refused)
        raise PlanError(
            f"a run of kind online reads no {keys}",
            why="; ".join(dict.fromkeys(why for _, why in refused)),
            fix=f"remove {keys}; areal evaluate scores what a run has saved",
        )


def _alone(config: RunConfig) -> AlgorithmConfig:
    """Return the algorithm for groups of one: where nothing else is asked for, rewards are compared over the batch.

    Raises:
        PlanError: it compares answers to one prompt.
    """
    algorithm, default = config.algorithm, AdvantageConfig()
    advantages = algorithm.advantages
    if (name := advantages.estimator.name) in GROUP_ESTIMATORS:
        raise PlanError(
            f"algorithm.advantages.estimator.name={name}, and kind is online",
            why="it compares the answers to one prompt, and every session is alone",
            fix=f"leave it out, which takes {_ESTIMATOR.name}: rewards are compared over the batch",
        )
    if (advantages.estimator, advantages.reward_norm) != (default.estimator, default.reward_norm):
        return algorithm
    if config.critic is None:
        made = evolve(advantages, estimator=_ESTIMATOR, reward_norm=NormConfig())
    else:
        made = evolve(advantages, reward_norm=NormConfig(mean=NormLevel.BATCH, std=NormLevel.BATCH))
    return evolve(algorithm, advantages=made)
