"""Kind `judged`: reinforcement learning whose answers are judged by a model that is a role of the run.

The judge has replicas, devices and a placement of its own in the plan, is asked by the controller about every answer,
and learns nothing. A judge behind a URL is the reward `judge`, one beside the policy in its own fleet the workflow
`judge`.

Knows: which keys of a run this is.
Does not know: how the judge is asked (`judge_fleet`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import evolve

from areal_core.config.plan import Plan, make_plan
from areal_core.config.schema import RL, RewardConfig, RunConfig
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_supervised.fleet import Beside, with_fleet
from areal_supervised.judged_config import ROLE, JudgedConfig

if TYPE_CHECKING:
    from areal_core.loop.run import Run

_BESIDE = Beside(role=ROLE, key="options.judge", by_url="name it as the reward judge: rollout.reward.options.url")
_UNSET = RewardConfig()
_NOTHING = RewardConfig(name="nothing")


class Judged:
    """A run of reinforcement learning with a judge among its roles."""

    def __init__(self, config: JudgedConfig) -> None:
        self._config = config

    def plan(
        self, config: RunConfig, registry: Registry, devices: Mapping[str, int], *, installed: bool = True
    ) -> Plan:
        """Return the plan of a run with a judge; `installed` as of `make_plan`.

        Raises:
            ConfigError, PluginError, ResourceError: as `make_plan`, and of the judge.
        """
        chosen, reward = self._config, config.rollout.reward
        registry.options("renderer", chosen.renderer, chosen.renderer_options, "options.renderer_options")
        alone = evolve(config.rollout, reward=_NOTHING if reward == _UNSET else reward)
        judged = evolve(config, kind=RL, options={}, rollout=alone)
        plan = make_plan(judged, registry, devices, installed=installed)
        plan, path = with_fleet(plan, chosen.judge, _BESIDE, registry, devices, installed=installed)
        options = {**config.options, "judge": {**config.options["judge"], "path": path}}  # maybe pinned
        rollout = evolve(plan.config.rollout, reward=reward)
        return evolve(plan, config=evolve(plan.config, kind=config.kind, options=options, rollout=rollout))

    def columns(self) -> Sequence[str]:
        """Return the columns of rows that the judge's question names."""
        return self._config.columns()

    def run(self, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event) -> Run:
        """Return the run of a plan."""
        from areal_supervised.judged_run import JudgedRun

        return JudgedRun(plan, registry, self._config, view=view, stop=stop)
