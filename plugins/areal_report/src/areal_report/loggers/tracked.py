"""Send metrics to trackio, wandb or swanlab: three packages with one way of being called.

Knows: `init`, `log`, `finish`.
Does not know: accounts and keys; each package reads its own environment.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, frozen


@frozen(kw_only=True)
class TrackedConfig:
    """`project` groups runs; `name` empty takes the run's. `options` are handed to `init` as they are."""

    project: str = "areal"
    name: str = ""
    options: Mapping[str, Any] = Factory(dict)  # Any: the package's own


class TrackedLogger:
    """One run in a tracking package that has `init`, `log(values, step=...)` and `finish`."""

    package = ""

    def __init__(self, config: TrackedConfig) -> None:
        self._config = config
        self._module: Any = None  # Any: the package, known only once imported

    def start(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """Begin a run."""
        module = importlib.import_module(self.package)
        module.init(**self._arguments(run, folder, config, first_step))
        self._module = module

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send one step."""
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        if self._module is not None:
            module, self._module = self._module, None
            module.finish()

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> dict[str, Any]:
        return {
            "project": self._config.project,
            "name": self._config.name or run,
            "config": dict(config),
            **self._config.options,
        }


class TrackioLogger(TrackedLogger):
    """The logger `trackio`: local by default, `trackio show` opens it."""

    package = "trackio"

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> dict[str, Any]:
        return {"resume": "allow" if first_step else "never", **super()._arguments(run, folder, config, first_step)}


class WandbLogger(TrackedLogger):
    """The logger `wandb`. `options: {mode: offline}` keeps it on this machine."""

    package = "wandb"

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> dict[str, Any]:
        return {
            "dir": str(folder),
            "resume": "allow" if first_step else None,
            **super()._arguments(run, folder, config, first_step),
        }


class SwanlabLogger(TrackedLogger):
    """The logger `swanlab`. `options: {mode: local}` keeps it on this machine."""

    package = "swanlab"

    def _arguments(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> dict[str, Any]:
        arguments = super()._arguments(run, folder, config, first_step)
        return {"experiment_name": arguments.pop("name"), "logdir": str(folder / "swanlab"), **arguments}
