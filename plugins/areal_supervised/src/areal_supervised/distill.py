"""Kind `distill`: the student learns on its own answers what a teacher would have said.

The student generates; the teacher, a frozen training role, tells the log-prob of every generated token; the reverse KL
of each token, log p_student - log p_teacher, is its penalty, so A_t is the discounted sum of -KL from token t on
(on-policy distillation: arXiv 2306.13649 with the reverse KL, arXiv 2306.08543). All else is an asynchronous run:
staleness, behaviour weights and clips are those of `algorithm:`. With `top_k` the KL over the teacher's most probable
tokens is the loss itself, and nothing is rewarded (`divergence`).

Knows: which keys of a run this is.
Does not know: how any of it is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import evolve, fields_dict

from areal_core.algorithms.config import (
    AdvantageConfig,
    AlgorithmConfig,
    EstimatorConfig,
    KLConfig,
    KLEstimator,
    NormConfig,
    NormLevel,
)
from areal_core.config.plan import Plan, make_plan
from areal_core.config.schema import RL, RewardConfig, RunConfig
from areal_core.contract.errors import PlanError
from areal_core.contract.train import ObjectiveSpec
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_supervised.distill_config import DistillConfig
from areal_supervised.scorer import with_scorer

if TYPE_CHECKING:
    from areal_core.loop.run import Run


class Distill:
    """A run of reinforcement learning whose reward is the teacher's judgement of every token."""

    def __init__(self, config: DistillConfig) -> None:
        self._config = config

    def plan(
        self, config: RunConfig, registry: Registry, devices: Mapping[str, int], *, installed: bool = True
    ) -> Plan:
        """Return the plan of a run with a teacher; `installed` as of `make_plan`.

        Raises:
            PlanError: there is no teacher, or a key is set that this kind sets itself.
            ConfigError, PluginError, ResourceError: as `make_plan`.
        """
        chosen = self._config
        if config.critic is not None:
            raise PlanError(
                "critic is set, and kind is distill",
                why="the teacher judges; nobody would ask a critic",
                fix="remove it",
            )
        if chosen.top_k:
            _check_plain(config.algorithm)
            if config.episodes.ratios:
                raise PlanError(
                    "episodes.ratios and options.top_k are set",
                    why="no ratio is computed then",
                    fix="remove one of them",
                )
        whole = self._whole(config)
        if chosen.served is not None:
            _check_temperature(whole)
        judged, elsewhere = whole.algorithm, chosen.teacher is None  # then no role is there to take the KL from
        alone = evolve(judged, advantages=evolve(judged.advantages, kl=KLConfig())) if elsewhere else judged
        plan = make_plan(evolve(whole, kind=RL, options={}, algorithm=alone), registry, devices, installed=installed)
        options = dict(config.options)
        if plan.config.reference is not None:
            options["teacher"] = {**options["teacher"], "path": plan.config.reference.path}  # maybe pinned
        if chosen.scorer is not None:
            plan, path = with_scorer(plan, chosen.scorer, registry, devices, installed=installed)
            options["scorer"] = {**options["scorer"], "path": path}
        kept = config.algorithm if chosen.top_k else judged
        plan = evolve(plan, config=evolve(plan.config, kind=config.kind, options=options, algorithm=kept))
        return self._of_candidates(plan, registry) if chosen.top_k else plan

    def run(self, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event) -> Run:
        """Return the run of a plan."""
        from areal_supervised.distill_run import DistillRun

        return DistillRun(plan, registry, self._config, view=view, stop=stop)

    def _of_candidates(self, plan: Plan, registry: Registry) -> Plan:
        """Return the plan with the loss over the teacher's most probable tokens."""
        for role in plan.roles:
            if role.role in ("actor", "reference"):
                registry.require("train", role.backend.name, "candidates", device=role.device)
        vocabulary = plan.role("actor").model.vocab_size
        if vocabulary and self._config.top_k > vocabulary:
            raise PlanError(
                f"options.top_k is {self._config.top_k}",
                why=f"the student's vocabulary has {vocabulary} entries",
                fix="a few dozen hold nearly all of a teacher's probability: 32",
            )
        return evolve(plan, objective=ObjectiveSpec(name="teacher_kl"))

    def _whole(self, config: RunConfig) -> RunConfig:
        """Return the run with the keys that make it a distillation; those of a resolved run are there already."""
        teacher, chosen = self._config.teacher, self._config
        named = [name for name in ("teacher", "served", "scorer") if getattr(chosen, name) is not None]
        if len(named) > 1:
            raise PlanError(
                " and ".join(f"options.{name}" for name in named) + " are set",
                why="there is one teacher",
                fix=f"remove all but options.{named[0]}",
            )
        if not named or (teacher is not None and teacher.path is None):
            raise PlanError(
                "options.teacher.path is not set",
                why="a student learns from a teacher",
                fix="for example options: {teacher: {path: /models/teacher, backend: fsdp:d1}}; or name "
                "options.scorer, an inference engine, or options.served, a server",
            )
        if chosen.scorer is not None and chosen.top_k:
            raise PlanError(
                "options.scorer and options.top_k are set",
                why="an inference engine tells log-probs of the tokens it is shown (scoring), and names none",
                fix="name the teacher under options.teacher or options.served, or remove options.top_k",
            )
        if self._config.top_k and self._config.discount:
            raise PlanError(
                "options.top_k and options.discount are set",
                why="the loss over several tokens is of one place; later ones have no part in it",
                fix="remove one of them",
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


def _check_temperature(config: RunConfig) -> None:
    heat = config.rollout.sampling.temperature
    if heat != 1.0:
        raise PlanError(
            f"rollout.sampling.temperature is {heat:g} and options.served is set",
            why="a server tells log-probs at temperature 1; the student's would be of another distribution",
            fix="set it to 1, or name the teacher as a training role under options.teacher",
        )


def _check_plain(algorithm: AlgorithmConfig) -> None:
    """Refuse settings of an algorithm that rewards."""
    default = AlgorithmConfig()
    for name in fields_dict(AlgorithmConfig):
        if getattr(algorithm, name) != getattr(default, name):
            raise PlanError(
                f"algorithm.{name} is set and options.top_k is too",
                why="the distance to the teacher is the loss itself: there are no advantages, ratios or clips",
                fix=f"remove algorithm.{name}, or options.top_k",
            )


def _check_free(key: str, found: object, unset: object, ours: object) -> None:
    if found not in (unset, ours):
        raise PlanError(
            f"{key} is set, and kind is distill",
            why="the teacher is the reference model, and its judgement of each token is all that is rewarded",
            fix=f"remove it; options.teacher and options.discount say what there is to say of {key}",
        )
