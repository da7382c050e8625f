"""Kind `distill`: the student learns on its own answers what a teacher would have said.

The student generates; the teacher, a frozen training role, tells the log-prob of every generated token; the reverse KL
of each token, log p_student - log p_teacher, is its penalty, so A_t is the discounted sum of -KL from token t on
(on-policy distillation: arXiv 2306.13649 with the reverse KL, arXiv 2306.08543). All else is an asynchronous run:
staleness, behaviour weights and clips are those of `algorithm:`.

Knows: which keys of a run this is.
Does not know: how any of it is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen, validators

from areal_core.algorithms.config import AdvantageConfig, EstimatorConfig, KLConfig, KLEstimator, NormConfig, NormLevel
from areal_core.config.plan import Plan, make_plan
from areal_core.config.schema import RL, RewardConfig, RoleConfig, RunConfig
from areal_core.contract.errors import PlanError
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry

if TYPE_CHECKING:
    from areal_core.loop.run import Run


@frozen(kw_only=True)
class DistillConfig:
    """Options of kind `distill`."""

    teacher: RoleConfig | None = None
    """Who is learned from, as a training role: {path: /models/teacher, backend: fsdp:d2}. Of the student's tokens."""
    discount: float = field(default=0.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """How much the KL of later tokens counts for a token: 0 its own alone, 1 in full, which is the KL of answers."""


class Distill:
    """A run of reinforcement learning whose reward is the teacher's judgement of every token."""

    def __init__(self, config: DistillConfig) -> None:
        self._config = config

    def plan(self, config: RunConfig, registry: Registry, devices: Mapping[str, int]) -> Plan:
        """Return the plan of a run with a teacher.

        Raises:
            PlanError: there is no teacher, or a key is set that this kind sets itself.
            ConfigError, PluginError, ResourceError: as `make_plan`.
        """
        whole = self._whole(config)
        plan = make_plan(evolve(whole, kind=RL, options={}), registry, devices)
        teacher = plan.config.reference
        assert teacher is not None
        options = {**config.options, "teacher": {**config.options["teacher"], "path": teacher.path}}  # maybe pinned
        return evolve(plan, config=evolve(plan.config, kind=config.kind, options=options))

    def run(self, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event) -> Run:
        """Return the run of a plan."""
        from areal_core.loop.run import Run

        return Run(plan, registry, view=view, stop=stop)

    def _whole(self, config: RunConfig) -> RunConfig:
        """Return the run with the keys that make it a distillation; those of a resolved run are there already."""
        teacher = self._config.teacher
        if teacher is None or teacher.path is None:
            raise PlanError(
                "options.teacher.path is not set",
                why="a student learns from a teacher",
                fix="for example options: {teacher: {path: /models/teacher, backend: fsdp:d1}}",
            )
        estimator = EstimatorConfig(name="discounted", options={"discount": self._config.discount})
        kl, none = KLConfig(coefficient=1.0, estimator=KLEstimator.K1), NormConfig()
        mean = NormConfig(mean=NormLevel.BATCH)  # a baseline: without one all tokens of a far student are pushed down
        judged = AdvantageConfig(estimator=estimator, kl=kl, reward_norm=none, advantage_norm=mean, reward_scale=0.0)
        _check_free("reference", config.reference, None, teacher)
        _check_free("algorithm.advantages", config.algorithm.advantages, AdvantageConfig(), judged)
        reward = config.rollout.reward if config.rollout.reward.name else RewardConfig(name="nothing")
        return evolve(
            config,
            reference=teacher,
            algorithm=evolve(config.algorithm, advantages=judged),
            rollout=evolve(config.rollout, reward=reward),
        )


def _check_free(key: str, found: object, unset: object, ours: object) -> None:
    if found not in (unset, ours):
        raise PlanError(
            f"{key} is set, and kind is distill",
            why="the teacher is the reference model, and its judgement of each token is all that is rewarded",
            fix=f"remove it; options.teacher and options.discount say what there is to say of {key}",
        )
