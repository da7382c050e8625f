"""From tasks and a model to what can be evaluated, or one good error before anything starts.

Knows: which of a run's checks hold for generating alone, and what an evaluation asks beside.
Does not know: how anything is started (`run`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve, frozen

from areal_core.config.plan import Plan, make_plan
from areal_core.config.sampling import check_sampling
from areal_core.contract.errors import ArealError, PlanError
from areal_core.contract.inference import SamplingParams
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.devices import count_visible
from areal_core.plugins.registry import Registry
from areal_evaluate.config import GeneratingRun, TasksConfig, run_config


@frozen(kw_only=True)
class BenchmarkPlan:
    """One benchmark, resolved. `plan` is that of a run that only generates, with a temperature one could train on."""

    name: str
    plan: Plan
    sampling: SamplingParams
    samples: int
    k: tuple[int, ...]
    max_prompts: int
    pass_reward: float


@frozen(kw_only=True)
class EvaluationPlan:
    """What is evaluated, on which replicas, into which folder."""

    name: str
    seed: int
    confidence: float
    max_concurrent: int
    folder: RunFolder
    benchmarks: tuple[BenchmarkPlan, ...]

    @property
    def engine(self) -> Plan:
        """Return the plan of the replicas, which all benchmarks share."""
        return self.benchmarks[0].plan

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what plans warn of, each once."""
        return tuple(dict.fromkeys(text for each in self.benchmarks for text in each.plan.warnings))


def plan_evaluation(model: str | Path, tasks: TasksConfig, registry: Registry) -> EvaluationPlan:
    """Check everything that can be checked without loading a model.

    Args:
        model: a model folder, or a run folder, whose last checkpoint counts.

    Raises:
        ConfigError, PluginError, ResourceError: the first thing that cannot work; names the benchmark.
    """
    for file in tasks.imports:
        registry.add_file(Path(file))
    path, devices = model_folder(model), count_visible(registry, os.environ)
    found = []
    for name in tasks.benchmarks:
        with _said_of(name):
            config = run_config(tasks, name, path)
            found.append(_benchmark(name, config, tasks, registry, devices))
    out = Path(tasks.out or f"runs/{tasks.name}")
    return EvaluationPlan(
        name=tasks.name,
        seed=tasks.seed,
        confidence=tasks.confidence,
        max_concurrent=tasks.max_concurrent,
        folder=RunFolder(out),
        benchmarks=tuple(found),
    )


def model_folder(model: str | Path) -> str:
    """Return a model folder as it is, and of a run folder the model of its last checkpoint."""
    folder = Path(model).expanduser()
    if not (folder / "config.json").exists() and (latest := RunFolder(folder).latest()) is not None:
        return str(latest / "model")
    return str(model)


def _benchmark(
    name: str, config: GeneratingRun, tasks: TasksConfig, registry: Registry, devices: dict[str, int]
) -> BenchmarkPlan:
    own, sampling = tasks.benchmarks[name], config.rollout.sampling
    samples = own.samples or tasks.samples
    if samples > 1 and sampling.temperature == 0:
        raise PlanError(
            f"samples={samples} at rollout.sampling.temperature=0",
            why="greedy samples of a prompt are all alike",
            fix="set samples=1, or a temperature above 0",
        )
    chosen = tasks.k if own.k is None else own.k
    for k in chosen:
        if not 1 <= k <= samples:
            raise PlanError(
                f"k={k} with {samples} samples per prompt",
                why="pass@k is estimated from the k or more samples each prompt has",
                fix=f"set k between 1 and {samples}, or samples={max(k, 1)}",
            )
    plan = make_plan(_trainable(config, tasks.max_concurrent), registry, devices)
    of_training = check_sampling(plan.config, plan.role("rollout").model)
    return BenchmarkPlan(
        name=name,
        plan=evolve(plan, warnings=tuple(text for text in plan.warnings if text not in of_training)),
        sampling=sampling,
        samples=samples,
        k=tuple(sorted(set(chosen or (1, samples)))),
        max_prompts=tasks.max_prompts if own.max_prompts is None else own.max_prompts,
        pass_reward=tasks.pass_reward if own.pass_reward is None else own.pass_reward,
    )


def _trainable(config: GeneratingRun, max_concurrent: int) -> GeneratingRun:
    """Return the configuration with what only training asks for set so that its checks pass."""
    rollout, sampling = config.rollout, config.rollout.sampling
    groups = -(-max_concurrent // rollout.group_size)
    if sampling.temperature == 0:
        sampling = evolve(sampling, temperature=1.0)
    whole_answers = evolve(config.actor, max_tokens_per_microbatch=max(1, sampling.max_new_tokens) + (1 << 40))
    return evolve(config, actor=whole_answers, rollout=evolve(rollout, max_concurrent=groups, sampling=sampling))


@contextmanager
def _said_of(benchmark: str) -> Iterator[None]:
    """Name the benchmark in whatever is wrong with it."""
    try:
        yield
    except ArealError as error:
        raise type(error)(f"benchmark {benchmark!r}: {error.what}", why=error.why, fix=error.fix) from error
