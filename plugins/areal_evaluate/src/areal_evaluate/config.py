"""The shape of a tasks.yaml: benchmarks, and the keys of a run that generating needs.

Knows: the keys, and how a benchmark's lie over those that all share.
Does not know: what fits with what (`plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, field, fields, frozen, validators

from areal_core.config.load import load_config
from areal_core.config.schema import EpisodesConfig, Options, RoleConfig, RunConfig
from areal_core.contract.errors import ConfigError, WrongType
from areal_core.plugins.structure import structure

_OWN_ROLLOUT = ("workflow", "reward", "sampling")
_OF_TRAINING = (
    *("prompts_per_step", "group_size", "max_staleness", "staleness_policy", "admission", "max_concurrent"),
    *("accept", "accept_tries", "dynamic_batch"),
)
_ALL_EPISODES = 1 << 62
_COUNT = validators.ge(1)


@frozen(kw_only=True)
class BenchmarkConfig:
    """One benchmark. What it leaves out is as the file has it for all.

    Example: {data: {name: spell, options: {split: held}}, rollout: {reward: {name: exact_match}}, samples: 8}
    """

    data: Options = Factory(dict)
    """As in a run's yaml: `name` and `options`. Rows are taken in their order."""
    rollout: Options = Factory(dict)
    """As in a run's yaml: `workflow`, `reward`, `sampling`."""
    samples: int | None = field(default=None, validator=validators.optional(_COUNT))
    k: tuple[int, ...] | None = None
    max_prompts: int | None = field(default=None, validator=validators.optional(validators.ge(0)))
    pass_reward: float | None = None


@frozen(kw_only=True)
class TasksConfig:
    """A tasks.yaml. `areal evaluate MODEL tasks.yaml a.b=c` reads it."""

    name: str = "evaluation"
    out: str = ""
    """The output folder; empty means `runs/<name>`."""
    benchmarks: Mapping[str, BenchmarkConfig] = Factory(dict)
    """Name -> benchmark. They are evaluated in this order, on the same replicas."""
    samples: int = field(default=1, validator=_COUNT)
    """Samples per prompt."""
    k: tuple[int, ...] = ()
    """For which k pass@k is told; empty takes 1 and all samples."""
    max_prompts: int = field(default=0, validator=validators.ge(0))
    """The first so many rows of each data set; 0 takes all."""
    pass_reward: float = 1.0
    """A sample passes if its reward is this or more."""
    confidence: float = field(default=0.95, validator=[validators.gt(0.0), validators.lt(1.0)])
    max_concurrent: int = field(default=256, validator=_COUNT)
    """Samples in flight at most."""
    seed: int = 1
    imports: tuple[str, ...] = ()
    deterministic: bool = False
    device: str = "auto"
    model: Options = Factory(dict)
    """As in a run's yaml: `dtype`. Its `path` is the command's argument."""
    rollout: Options = Factory(dict)
    """As in a run's yaml, for all benchmarks: `backend`, `options`, `sampling`, `workflow`, `reward`, ..."""
    scheduler: Options = Factory(dict)
    """As in a run's yaml."""


@frozen(kw_only=True)
class GeneratingRun(RunConfig):
    """The configuration of a run without training roles."""

    @property
    def train_roles(self) -> dict[str, RoleConfig]:
        """Return none."""
        return {}


def load_tasks(tasks: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> TasksConfig:
    """Read a tasks file, or the same keys as a mapping, with overrides `a.b=c`. Any: what a yaml may hold.

    Raises:
        ConfigError: the file is missing or no yaml, an override is not `key=value`, or there is no benchmark.
        UnknownKey, WrongType: names the key.
    """
    plain = _plain(tasks, overrides)
    own = plain.get("benchmarks")
    for name, benchmark in own.items() if isinstance(own, Mapping) else ():
        if isinstance(benchmark, Mapping):
            structure(BenchmarkConfig, benchmark, f"benchmarks.{name}")  # names the benchmark in what is wrong with it
    config = structure(TasksConfig, plain)
    if not config.benchmarks:
        raise ConfigError(
            "no benchmarks given",
            why="benchmarks: holds one entry per benchmark, by name",
            fix="for example benchmarks: {spell: {data: {name: spell}, rollout: {reward: {name: exact_match}}}}",
        )
    _check_keys(config)
    return config


def run_config(tasks: TasksConfig, name: str, model: str) -> GeneratingRun:
    """Return a benchmark as a run that only generates.

    Raises:
        UnknownKey, WrongType: names the key as in a run's yaml.
    """
    benchmark = tasks.benchmarks[name]
    sampling = {**_sampling(tasks.rollout), **_sampling(benchmark.rollout)}
    whole = load_config(
        base={
            **{key: getattr(tasks, key) for key in ("name", "out", "seed", "deterministic", "device")},
            "imports": list(tasks.imports),
            "model": {**tasks.model, "path": model},
            "data": {"shuffle": False, **benchmark.data},
            "rollout": {**tasks.rollout, **benchmark.rollout, "sampling": sampling},
            "scheduler": dict(tasks.scheduler),
        }
    )
    kept = {each.name: getattr(whole, each.name) for each in fields(RunConfig)}
    return GeneratingRun(**{**kept, "episodes": EpisodesConfig(keep=_ALL_EPISODES)})


def _sampling(rollout: Options) -> Options:
    found = rollout.get("sampling", {})
    if not isinstance(found, Mapping):
        raise WrongType(f"rollout.sampling is {found!r}", why="it must hold keys", fix="for example {temperature: 0.6}")
    return found


def _check_keys(config: TasksConfig) -> None:
    """Refuse keys of a run that would have no effect."""
    for key in _OF_TRAINING:
        if key in config.rollout:
            raise ConfigError(
                f"rollout.{key} has no effect in an evaluation",
                why="nothing is trained",
                fix="samples, max_prompts and max_concurrent, beside benchmarks, say how much is generated",
            )
    if "processes" in config.rollout:
        raise ConfigError(
            "rollout.processes has no effect in an evaluation",
            why="it makes all samples in its own process",
            fix="leave it out; max_concurrent says how many are made at once",
        )
    for name, benchmark in config.benchmarks.items():
        for key in benchmark.rollout:
            if key not in _OWN_ROLLOUT:
                raise ConfigError(
                    f"benchmarks.{name}.rollout.{key} is not of one benchmark",
                    why=f"benchmarks share the replicas; one has {', '.join(_OWN_ROLLOUT)} of its own",
                    fix=f"set rollout.{key} beside benchmarks",
                )


def _plain(tasks: str | Path | Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return what a file and overrides hold, interpolated. Any: plain data."""
    from omegaconf import DictConfig, OmegaConf

    for override in overrides:
        if not override.partition("=")[1] or override.startswith("="):
            raise ConfigError(f"override {override!r} is not key=value", fix="for example: samples=8")
    if not isinstance(tasks, Mapping) and not Path(tasks).is_file():
        raise ConfigError(
            f"tasks file {tasks} does not exist",
            fix="name a yaml file with benchmarks: areal evaluate MODEL tasks.yaml",
        )
    try:
        read = OmegaConf.create(dict(tasks)) if isinstance(tasks, Mapping) else OmegaConf.load(tasks)
        if not isinstance(read, DictConfig):
            raise TypeError("it must hold keys")
        found = OmegaConf.to_container(OmegaConf.merge(read, OmegaConf.from_dotlist(list(overrides))), resolve=True)
    except Exception as error:  # whatever yaml and OmegaConf raise for text that is no yaml
        where = "the tasks" if isinstance(tasks, Mapping) else f"tasks file {tasks}"
        raise ConfigError(f"{where} cannot be read", why=str(error).partition("\n")[0]) from None
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}
