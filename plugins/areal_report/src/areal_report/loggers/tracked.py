"""Send metrics to trackio, wandb or swanlab: three packages with one way of being called.

Knows: `init`, `log`, `finish`, tables, and how a run is continued: a file in the run folder (`wandb-id`, `trackio-id`,
`swanlab-id`) holds what the package knows the run by. A run made anew has none, for the folder of the one before it
was moved aside.
Does not know: accounts and keys; each package reads its own environment.
"""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_core.plugins.extensions import extension

SAMPLE_COLUMNS = ("step", "task", "reward", "prompt", "completion", "stop", "tokens")
"""What the extension `samples` gives of an episode."""


@frozen(kw_only=True)
class TrackedConfig:
    """How a run stands in an experiment tracker."""

    project: str = "areal"
    """Groups runs."""
    name: str = ""
    """Of the run; empty takes the run's own."""
    samples: int = field(default=0, validator=validators.ge(0))
    """Prompts and answers of every step that are sent along as a table, best and worst in turn, by `trackio` and
    `wandb`; 0 sends no text."""
    options: Mapping[str, Any] = Factory(dict)  # Any: the package's own
    """Handed to the package's `init` as they are."""


class TrackedLogger:
    """One run in a tracking package that has `init`, `log(values, step=...)` and `finish`."""

    package = ""

    def __init__(self, config: TrackedConfig) -> None:
        self._config = config
        self._module: Any = None  # Any: the package, known only once imported
        self._folder = Path()
        self._last = 0

    def start(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """Begin a run."""
        module = importlib.import_module(self.package)
        module.init(**self._arguments(run, folder, config))
        self._module, self._folder = module, folder

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send one step, with samples of the one before: the store of episodes writes a moment later."""
        self._module.log({**values, **self._samples()}, step=step)
        self._last = step

    def close(self) -> None:
        """Finish the run."""
        if self._module is not None:
            module, table, step = self._module, self._samples(), self._last
            self._module = None
            if table:
                module.log(table, step=step)
            module.finish()

    def _samples(self) -> dict[str, Any]:
        """Return a table of episodes of the last step, if it was asked for and somebody keeps episodes."""
        read = extension("samples") if self._config.samples and self._last else None
        rows = read(self._folder, self._last, self._config.samples) if read is not None else []
        return {"samples": self._table(rows)} if rows else {}

    def _table(self, rows: Sequence[Sequence[object]]) -> object:
        return self._module.Table(columns=list(SAMPLE_COLUMNS), data=[list(row) for row in rows])

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "project": self._config.project,
            "name": self._config.name or run,
            "config": dict(config),
            **self._config.options,
        }

    def _known(self, folder: Path) -> str:
        """Return what the run was known by when it was last logged from this folder, empty if it never was."""
        kept = folder / f"{self.package}-id"
        return kept.read_text().strip() if kept.exists() else ""

    def _keep(self, folder: Path, known_by: object) -> None:
        (folder / f"{self.package}-id").write_text(f"{known_by}\n")


class TrackioLogger(TrackedLogger):
    """The logger `trackio`: local by default, `trackio show` opens it. It knows a run by its name."""

    package = "trackio"

    def _table(self, rows: Sequence[Sequence[object]]) -> object:
        from pandas import DataFrame

        return self._module.Table(dataframe=DataFrame(list(rows), columns=list(SAMPLE_COLUMNS)))

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
        known = self._known(folder)
        arguments = super()._arguments(known or run, folder, config)
        self._keep(folder, arguments["name"])
        return {"resume": "allow" if known else "never", **arguments}


class WandbLogger(TrackedLogger):
    """The logger `wandb`. `options: {mode: offline}` keeps it on this machine."""

    package = "wandb"

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
        known = self._known(folder)
        arguments = {
            "dir": str(folder),
            "id": known or secrets.token_hex(4),
            "resume": "allow" if known else None,
            **super()._arguments(run, folder, config),
        }
        self._keep(folder, arguments["id"])
        return arguments


class SwanlabLogger(TrackedLogger):
    """The logger `swanlab`. `options: {mode: local}` keeps it on this machine, where it continues no run."""

    package = "swanlab"

    def _samples(self) -> dict[str, Any]:
        return {}

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
        arguments = super()._arguments(run, folder, config)
        arguments = {"experiment_name": arguments.pop("name"), "logdir": str(folder / "swanlab"), **arguments}
        if (arguments.get("mode") or os.environ.get("SWANLAB_MODE") or "online") not in ("online", "cloud"):
            return arguments  # there it refuses an id
        known = self._known(folder) or secrets.token_hex(11)[:21]  # the length that earlier versions ask for
        arguments = {"id": known, "resume": "allow", **arguments}  # `never`, its default, refuses an id, too
        self._keep(folder, arguments["id"])
        return arguments
