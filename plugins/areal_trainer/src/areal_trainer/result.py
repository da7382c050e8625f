"""What a run has left, as objects: metrics, the curve, the trained folder, the report.

Knows: the files of a run folder; read when they are asked for, so that a run that goes on can be looked at.
Does not know: how the run came about.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_core.contract.errors import EngineMissing, RunFolderError
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.install import pip_install
from areal_episodes.reader import Reader
from areal_trainer.notebook import curve_svg, headline_of

if TYPE_CHECKING:
    import pandas

SHOWN = ("step", "reward", "staleness", "loss", "grad_norm", "entropy", "step_s")
"""Columns a notebook shows, if they are there; the others are in the table."""
_SHOWN_ROWS = 10


class Table(list[dict[str, Any]]):  # Any: as in `metrics.jsonl`
    """One mapping per step, oldest first."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame of pandas.

        Raises:
            EngineMissing: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise EngineMissing("to_pandas needs pandas", why=str(error), fix="pip install pandas") from None
        return pandas.DataFrame(list(self))

    def column(self, name: str) -> list[Any]:
        """Return one number of every step that has it."""
        return [record[name] for record in self if name in record]

    def _repr_html_(self) -> str:
        shown = [name for name in SHOWN if any(name in record for record in self)]
        head = "".join(f"<th>{name}</th>" for name in shown)
        rows = "".join(
            "<tr>" + "".join(f"<td>{_number(record.get(name))}</td>" for name in shown) + "</tr>"
            for record in self[-_SHOWN_ROWS:]
        )
        return f"<table><tr>{head}</tr>{rows}</table><small>the last of {len(self)} steps</small>"


class Curve:
    """The reward over the steps, or the loss where nothing is rewarded; a notebook shows it, `path` is the picture."""

    def __init__(self, path: Path, values: Sequence[float], name: str = "reward") -> None:
        """Read nothing yet."""
        self.path, self.values, self.name = path, tuple(values), name

    def __repr__(self) -> str:
        ends = f", from {self.values[0]:.3f} to {self.values[-1]:.3f}" if self.values else ""
        return f"<{self.name} of {len(self.values)} steps{ends}: {self.path}>"

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.is_file() else None

    def _repr_html_(self) -> str | None:
        return None if self.path.is_file() else curve_svg(self.values)


class Result:
    """A run that ended, or goes on: `Result("runs/quickstart").metrics`."""

    def __init__(self, folder: str | Path) -> None:
        """Open a run folder.

        Raises:
            RunFolderError: it holds no run.
        """
        self._files = RunFolder(Path(folder))
        self.folder = self._files.root
        if not self._files.config.is_file():
            raise RunFolderError(
                f"run folder {self.folder} holds no run", why="there is no config.yaml in it", fix="train() begins one"
            )

    @property
    def metrics(self) -> Table:
        """Return what `metrics.jsonl` holds."""
        if not self._files.metrics.is_file():
            return Table()
        lines = self._files.metrics.read_text(encoding="utf-8").splitlines()
        return Table(json.loads(line) for line in lines if line.endswith("}"))

    @property
    def summary(self) -> Mapping[str, Any]:  # Any: as `summary.json`
        """Return what `summary.json` holds; nothing before the run has ended."""
        if not self._files.summary.is_file():
            return {}
        found: Mapping[str, Any] = json.loads(self._files.summary.read_text(encoding="utf-8"))
        return found

    @property
    def finished(self) -> bool:
        """Return whether the run came to its last step."""
        return self.summary.get("status") == "finished"

    @property
    def curve(self) -> Curve:
        """Return the reward over the steps, or the loss where nothing is rewarded."""
        metrics = self.metrics
        name = headline_of(metrics[-1]) if metrics else "reward"
        return Curve(self._files.picture, metrics.column(name), name)

    @property
    def model(self) -> Path:
        """Return the folder of the newest trained model, in Hugging Face format.

        Raises:
            RunFolderError: no checkpoint is complete.
        """
        latest = self._files.latest()
        if latest is None or not (latest / "model").is_dir():
            raise RunFolderError(
                f"run folder {self.folder} holds no trained model",
                why="the run saved no checkpoint",
                fix="let it end, or set checkpoint.every_steps",
            )
        return latest / "model"

    @property
    def report(self) -> Path:
        """Return the page; `areal report RUN` writes it anew."""
        return self._files.report

    def episodes(self) -> Reader:
        """Return the reader of the run's episodes; use it in a `with` block.

        Raises:
            StorageError: none were kept.
        """
        return Reader(self.folder)

    def evaluate(self, tasks: Any, **options: Any) -> Any:
        """Score the newest trained model on benchmarks: `areal_evaluate.evaluate`. Any: as there.

        Raises:
            EngineMissing: areal-evaluate is not installed.
        """
        try:
            from areal_evaluate.evaluate import evaluate
        except ImportError as error:
            raise EngineMissing(
                "evaluate needs areal-evaluate", why=str(error), fix=pip_install("areal-core[evaluate]")
            ) from None
        return evaluate(self.folder, tasks, **options)

    def push(self, to: str, **options: Any) -> str:
        """Upload the newest trained model with a model card, and return its address: `areal_hub.push.push`. Any: so.

        Raises:
            EngineMissing: areal-hub is not installed.
        """
        try:
            from areal_hub.push import push
        except ImportError as error:
            raise EngineMissing("push needs areal-hub", why=str(error), fix=pip_install("areal-hub")) from None
        return push(self.folder, to, **options)

    @cached_property
    def _name(self) -> str:
        return self.folder.name

    def __repr__(self) -> str:
        curve = self.curve
        last = f", {curve.name} {curve.values[-1]:.3f}" if curve.values else ""
        return f"<run {self._name}: {self.summary.get('status', 'going on')}, {len(curve.values)} steps{last}>"

    def _repr_html_(self) -> str:
        curve = curve_svg(self.curve.values)
        return f"<div>{html.escape(repr(self))}{curve}<code>{html.escape(str(self.folder))}</code></div>"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else html.escape(str(value))
