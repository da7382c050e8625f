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

from areal_agents.serve.config import OnlineConfig
from areal_core.algorithms.config import AdvantageConfig, EstimatorConfig
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
from areal_core.contract.errors import PlanError
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry

if TYPE_CHECKING:
    from areal_core.loop.run import Run

_DATA = DataConfig(name="clients", shuffle=False)
_WORKFLOW = WorkflowConfig(name="online")
_PATIENCE_S = 1e9
"""An episode waits for a client as long as a run may last; its session is bounded by `idle_timeout_s`."""
_ADVANTAGES = AdvantageConfig(estimator=EstimatorConfig(name="reinforce++"))
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
        whole = _whole(config)
        judged = evolve(whole, kind=RL, options={}, rollout=evolve(whole.rollout, reward=_PLANNED))
        plan = make_plan(judged, registry, devices, installed=installed)
        rollout = evolve(plan.config.rollout, reward=RewardConfig())
        kept = evolve(plan.config, kind=config.kind, options=config.options, rollout=rollout)
        return evolve(plan, config=kept, warnings=(*plan.warnings, *self._warnings()))

    def run(self, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event) -> Run:
        """Return the run of a plan."""
        from areal_agents.serve.run import OnlineRun

        return OnlineRun(plan, registry, self._config, view=view, stop=stop)

    def _warnings(self) -> list[str]:
        host = self._config.host
        if not self._config.beyond_loopback:
            return []
        open_to = "other machines may come in, and keys travel unencrypted; put a proxy with TLS in front"
        return [f"options.host={host}: {open_to}"]


def _whole(config: RunConfig) -> RunConfig:
    """Return the run with the keys that make it one of clients; those of a resolved run are there already."""
    rollout, default = config.rollout, RolloutConfig()
    _check_free("data", config.data, DataConfig(), _DATA)
    _check_free("evaluation", config.evaluation, EvaluationConfig())
    _check_free("rollout.workflow", rollout.workflow, default.workflow, _WORKFLOW)
    _check_free("rollout.reward", rollout.reward, default.reward)
    _check_free("rollout.accept", rollout.accept, default.accept)
    _check_free("rollout.group_size", rollout.group_size, default.group_size, 1)
    algorithm = config.algorithm
    if algorithm.advantages == AdvantageConfig() and config.critic is None:
        algorithm = evolve(algorithm, advantages=_ADVANTAGES)
    alone = evolve(rollout, workflow=_WORKFLOW, group_size=1, episode_timeout_s=_PATIENCE_S)
    return evolve(config, data=_DATA, rollout=alone, algorithm=algorithm)


def _check_free(key: str, found: object, *free: object) -> None:
    if found not in free:
        raise PlanError(
            f"{key} is set, and kind is online",
            why="prompts come from clients, one session at a time, and they tell the rewards",
            fix="remove it; areal evaluate scores what a run has saved",
        )
