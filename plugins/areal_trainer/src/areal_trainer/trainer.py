"""A run from Python: `areal.Trainer("MODEL", reward=right, data=rows, steps=20).train()`.

Knows: arguments, the keys of a run they stand for, and where what was in memory is kept.
Does not know: how a task becomes files (`task`), or how training works (`areal_core.loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import evolve, frozen
from rich.console import Console

from areal_core.cli.train import PlainView
from areal_core.config.load import dump_config, load_config
from areal_core.config.plan import Plan, plan_here
from areal_core.config.schema import RL, RunConfig
from areal_core.contract.errors import ConfigError
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.extensions import RunReport, RunView, extension
from areal_core.plugins.registry import Registry
from areal_episodes.reader import Reader
from areal_trainer.background import run_aside
from areal_trainer.notebook import NotebookView, in_notebook
from areal_trainer.result import Result
from areal_trainer.task import Keys, Task, agent_task, data_task, merged, reward_task

TASK_FOLDER = "task"
"""In the run folder: rows and functions that were in memory."""


@frozen
class Planned:
    """A plan; printed, it reads as `areal train --dry-run` shows it."""

    plan: Plan
    first: str = ""
    """What the first row becomes: the prompt as the model reads it, and the call of the reward function."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the plan warns of."""
        return self.plan.warnings

    def __repr__(self) -> str:
        return "\n\n".join(part for part in (str(self.plan), self.first) if part)


class Trainer:
    """One run, to plan, train, write down and look at. Works in scripts and in notebooks, with no guard around it.

    Example:
        Trainer("models/qwen", reward=right, data=rows, train="fsdp:d1", infer="vllm:d1", steps=100).train()
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        reward: Callable[..., object] | str | Mapping[str, Any] | None = None,
        agent: Callable[..., object] | str | Mapping[str, Any] | None = None,
        data: Any = None,
        held_out: Any = None,
        algorithm: str | Mapping[str, Any] | None = None,
        train: str | None = None,
        infer: str | None = None,
        steps: int | None = None,
        out: str | Path | None = None,
        **run: Any,
    ) -> None:
        """Check every key; load nothing. Any: what a run's yaml may hold, and rows of any kind.

        Args:
            model: `model.path`.
            reward: a function, the name of a registered one, or keys under `rollout.reward`.
            agent: a function run(row, base_url, api_key), FILE.py:FUNCTION, or options of the workflow `agent`.
            data: rows, a data set of the library `datasets`, a file, a registered name, or keys under `data`.
            held_out: the same, for `evaluation.data`.
            algorithm: the name of a preset, or keys under `algorithm`.
            train: `actor.backend`, for example fsdp:d1.
            infer: `rollout.backend`, for example vllm:d1.
            steps: of the run.
            out: the run folder; None takes runs/<name>.
            run: any other key of a run, as nested mappings: rollout={"group_size": 4}, actor={"optimizer": {...}}.

        Raises:
            ConfigError, UnknownKey, WrongType: names the key, or what cannot travel to the run's processes.
            DatasetError: the rows are none.
        """
        task = _task(reward, agent, data, held_out)
        named = {"model": {"path": str(model)}} if model is not None else {}
        chosen: Keys = {"preset": algorithm} if isinstance(algorithm, str) else dict(algorithm or {})
        given: Keys = {
            "algorithm": chosen,
            "actor": {"backend": train},
            "rollout": {"backend": infer},
            "steps": steps,
            "out": None if out is None else str(out),
        }
        keys = merged(merged(_without_none(given), merged(named, task.keys)), run)
        task = evolve(task, keys=keys)
        self._task = task
        self._load: Callable[[Path], RunConfig] = lambda folder: load_config(base=task.within(folder))
        self.config = self._load(Path())
        self.config = self._load(RunFolder.of(self.config).root / TASK_FOLDER)

    @classmethod
    def from_yaml(cls, path: str | Path, overrides: Sequence[str] = ()) -> Trainer:
        """Return the trainer of a run's yaml; `overrides` are `a.b=c`, as of `areal train`.

        Raises:
            ConfigError, UnknownKey, WrongType: as of `areal train`.
        """
        made = cls.__new__(cls)
        made._task = Task()
        made.config = load_config(path, overrides)
        made._load = lambda folder: made.config
        return made

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the run as yaml, which `areal train` and `from_yaml` read.

        With `path` it is written there, and what was in memory into the folder `<path>.task` beside it; without, the
        yaml names the files in the run folder, which are there once `train` has begun.
        """
        if path is None:
            return dump_config(self.config)
        path = Path(path).absolute()
        folder = path.with_name(f"{path.name}.{TASK_FOLDER}")
        text = dump_config(self._load(folder))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._task.write(folder)
        path.write_text(text, encoding="utf-8")
        return text

    def plan(self) -> Planned:
        """Check everything that can be checked without loading a model, and leave nothing behind.

        Raises:
            ConfigError, PluginError, ResourceError: the first thing that cannot work, what, why, fix.
        """
        with TemporaryDirectory(prefix="areal-") as scratch:
            self._task.write(Path(scratch))
            plan, registry = _planned(self._load(Path(scratch)))
            preview = extension("preview")
            first = preview(plan, registry) if preview else ""
        rollout = evolve(self.config.rollout, max_staleness=plan.config.rollout.max_staleness)
        return Planned(evolve(plan, config=evolve(self.config, model=plan.config.model, rollout=rollout)), first)

    def train(self, *, resume: bool = False, archive: bool = False, quiet: bool = False) -> Result:
        """Run to the last step. A Ctrl-C, or an interrupt of the kernel, ends the run after its step and saves it.

        Args:
            resume: continue the run in the folder from its last checkpoint.
            archive: move an earlier run in the folder aside instead of refusing.
            quiet: show nothing; errors are raised.

        Raises:
            ConfigError, PluginError, ResourceError: something cannot work; nothing was started.
            RunFolderError: the folder holds another run.
            KeyboardInterrupt: it was interrupted; `result` is what there is of it.
            ArealError: the first error of any part.
        """
        self.plan()
        folder = RunFolder.of(self.config)
        if self._task.files:
            with folder.held(resume=resume, archive=archive):
                self._task.write(folder.root / TASK_FOLDER)
        plan, registry = _planned(self.config)
        console = Console(quiet=quiet)
        view = self._view(plan, console, quiet)

        async def work(stop: Any) -> bool:  # Any: an asyncio.Event
            from areal_core.loop.run import make_run  # seconds of imports: the view is there before them

            run = make_run(plan, registry, view=shown, stop=stop)
            return (await run.execute(resume=resume, archive=archive)).finished

        with view as shown:
            finished, interrupted = run_aside(work, shown.note)
        report: RunReport | None = extension("report")
        if report is not None and not in_notebook():
            console.print(report.closing(folder), highlight=False, markup=False, soft_wrap=True)
        if interrupted and not finished:
            raise KeyboardInterrupt(folder.how_to_go_on())
        return self.result

    @property
    def result(self) -> Result:
        """Return what the run has left so far.

        Raises:
            RunFolderError: it has not begun.
        """
        return Result(RunFolder.of(self.config).root)

    def episodes(self) -> Reader:
        """Return the reader of the run's episodes, also while it goes on; use it in a `with` block.

        Raises:
            RunFolderError, StorageError: the run has not begun, or keeps none.
        """
        return self.result.episodes()

    def __repr__(self) -> str:
        run = self.config
        who = (
            f"{run.actor.backend} and {run.rollout.backend}" if run.kind == RL else f"{run.kind} by {run.actor.backend}"
        )
        return f"<Trainer {run.name}: {run.model.path}, {who}, {run.steps} steps>"

    def _view(self, plan: Plan, console: Console, quiet: bool) -> AbstractContextManager[RunView]:
        run = self.config
        if not quiet and in_notebook():
            return NotebookView(plan.config.steps, title=run.name)
        report: RunReport | None = extension("report")
        if report is None:
            return nullcontext(PlainView(plan.config.steps, console))
        return report.view(plan.config.steps, title=run.name, folder=RunFolder.of(run).root, console=console)


def _task(reward: Any, agent: Any, data: Any, held_out: Any) -> Task:
    """Return everything that may be in memory, as one task. Any: as of `Trainer`."""
    keys: Keys = {}
    files: dict[str, Callable[[Path], object]] = {}
    if reward is not None:
        named, made = reward_task(reward)
        keys = merged(keys, {"rollout": {"reward": named}, **made.keys})
        files.update(made.files)
    if agent is not None:
        made = agent_task(agent)
        keys = merged(keys, made.keys)
        files.update(made.files)
    for path, value, file in (("data", data, "rows"), ("held_out", held_out, "held_out")):
        if value is not None:
            made = data_task(value, file)
            keys = merged(keys, {"data": made.keys} if path == "data" else {"evaluation": {"data": made.keys}})
            files.update(made.files)
    return Task(keys=keys, files=files)


def _without_none(value: Any) -> Any:  # Any: keys of a run
    """Leave out what was not given, and what holds nothing else."""
    if not isinstance(value, Mapping):
        return value
    found = {key: _without_none(item) for key, item in value.items() if item is not None}
    return {key: item for key, item in found.items() if item != {}}


def _planned(config: RunConfig) -> tuple[Plan, Registry]:
    """Return the plan, and a registry of its own: a function may have changed since an earlier plan."""
    registry = Registry()
    if not config.model.path and not config.actor.path:
        raise ConfigError(
            "no model given", why="a run trains one", fix='Trainer("path/of/a/model", ...), or model.path in the yaml'
        )
    return plan_here(config, registry), registry
