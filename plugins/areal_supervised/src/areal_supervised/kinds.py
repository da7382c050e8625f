"""The kinds of run: what each minimises, on which rows, with which roles.

Knows: options, and which keys of a run mean nothing without generating.
Does not know: rows and batches, before a run is made: what runs takes seconds to import, planning does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import attrs

from areal_core.config.plan import Plan, plan_training
from areal_core.config.schema import EvaluationConfig, RunConfig
from areal_core.contract.errors import PlanError
from areal_core.contract.train import Head, ObjectiveSpec
from areal_core.plugins.extensions import RunView
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure
from areal_supervised.config import DPOConfig, IPOConfig, RewardModelConfig, SFTConfig, SupervisedConfig

if TYPE_CHECKING:
    from areal_core.loop.run import Run
    from areal_supervised.run import Lesson

_OF_ROLLOUTS = ("rollout", "algorithm", "critic", "weight_sync", "episodes", "guard")
_OF_LOGPROBS = ObjectiveSpec(name="linear", config={"output": "logprobs"})
_OF_VALUES = ObjectiveSpec(name="linear", config={"output": "values"})


class RowKind(Protocol):
    """A kind that learns from rows, built with its options by planning and by the run."""

    config: SupervisedConfig

    @property
    def objective(self) -> ObjectiveSpec:
        """What the actor minimises."""

    @property
    def head(self) -> Head:
        """What sits on the actor's transformer."""
        return Head.CAUSAL_LM

    @property
    def compares(self) -> bool:
        """Whether a reference model is needed."""
        return False

    def lesson(self) -> Lesson:
        """Return what is taken of a row, and computed of a batch."""

    def plan(self, config: RunConfig, registry: Registry, devices: Mapping[str, int]) -> Plan:
        """Return the plan: with a reference model where one is needed, and as many steps as the epochs take.

        Raises:
            PlanError: a key is set that has no effect.
            ConfigError, PluginError, ResourceError: as `areal_core.config.plan.make_plan`.
        """
        _check_keys(config, self.compares)
        if self.compares and config.reference is None:
            beside = attrs.evolve(config.actor, lora=None, path=config.actor.path or config.model.path)
            config = attrs.evolve(config, reference=beside)
        plan = plan_training(config, registry, devices, self.objective, head=self.head)
        steps = _steps(self.config, config, registry)
        return plan if steps is None else attrs.evolve(plan, config=attrs.evolve(config, steps=steps))

    def run(self, plan: Plan, registry: Registry, *, view: RunView, stop: asyncio.Event) -> Run:
        """Return the run of a plan."""
        from areal_supervised.run import RowRun

        return RowRun(plan, registry, self.lesson(), view=view, stop=stop)


class SFT(RowKind):
    """Kind `sft`: the likelihood of answers."""

    def __init__(self, config: SFTConfig) -> None:
        self.config = config
        self._normalizer = config.normalizer

    @property
    def objective(self) -> ObjectiveSpec:
        """Return the mean negative log-likelihood."""
        return ObjectiveSpec(name="sft", config={"normalizer": self._normalizer})

    def lesson(self) -> Lesson:
        """Return answers, imitated."""
        from areal_supervised.learning import Imitation
        from areal_supervised.rows import answers
        from areal_supervised.run import Lesson

        return Lesson(config=self.config, encode=answers, method=Imitation())


class DPO(RowKind):
    """Kind `dpo`: log-ratios to a reference model, compared."""

    compares, objective = True, _OF_LOGPROBS

    def __init__(self, config: DPOConfig) -> None:
        self.config = self._options = config

    def lesson(self) -> Lesson:
        """Return pairs, compared by their log-probs."""
        from areal_supervised.lessons import by_logprobs
        from areal_supervised.preference import dpo

        return by_logprobs(self._options, dpo(self._options))


class IPO(RowKind):
    """Kind `ipo`: the same, regressed on a margin."""

    compares, objective = True, _OF_LOGPROBS

    def __init__(self, config: IPOConfig) -> None:
        self.config = self._options = config

    def lesson(self) -> Lesson:
        """Return pairs, compared by their log-probs."""
        from areal_supervised.lessons import by_logprobs
        from areal_supervised.preference import ipo

        return by_logprobs(self._options, ipo(self._options))


class RewardModel(RowKind):
    """Kind `reward_model`: a scalar head, compared after the last token."""

    head, objective = Head.VALUE, _OF_VALUES

    def __init__(self, config: RewardModelConfig) -> None:
        self.config = self._options = config

    def lesson(self) -> Lesson:
        """Return pairs, compared by the reward of each."""
        from areal_supervised.lessons import by_values
        from areal_supervised.preference import reward_model

        return by_values(self._options, reward_model(self._options))


def _check_keys(config: RunConfig, compares: bool) -> None:
    """Refuse keys that nobody would read."""
    plain, default = unstructure(config), unstructure(RunConfig())
    for key in (*_OF_ROLLOUTS, *(() if compares else ("reference",))):
        if plain[key] != default[key]:
            told = f"{key}.{_first_other(plain[key], default[key])}".rstrip(".")
            raise PlanError(
                f"{told} has no effect with kind={config.kind}",
                why="nothing is generated: the run learns from the rows of its data",
                fix=f"remove it; options of the kind stand under options: (areal backends {config.kind})",
            )
    for key in ("temperature", "sets"):
        if getattr(config.evaluation, key) != getattr(EvaluationConfig(), key):
            raise PlanError(f"evaluation.{key} has no effect", why="nothing is generated", fix="remove it")


def _first_other(found: object, default: object) -> str:
    """Return the dotted path of the first value that differs."""
    if not isinstance(found, dict) or not isinstance(default, dict):
        return ""
    name = next(name for name in found if found[name] != default.get(name))
    return f"{name}.{_first_other(found[name], default.get(name))}".rstrip(".")


def _steps(options: SupervisedConfig, config: RunConfig, registry: Registry) -> int | None:
    """Return how many steps the epochs take, None if their number is not set. The last batch is filled up."""
    if not options.epochs:
        return None
    rows = registry.build("dataset", config.data.name, config.data.options, "data.options")
    return max(1, -(-len(rows) * options.epochs // options.batch_size))  # type: ignore[arg-type]  # a data set has a length
