"""Law 4 by enumeration: kill every process of a run, or press Ctrl-C, at every boundary, and look at what was trained.

Knows: the runs, the boundaries a reference run crossed, and what must hold after any of them.
Does not know: how anything is killed (`killed_run`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import torch
from attrs import frozen
from safetensors.torch import load_file

from areal_core.cli.main import INTERRUPTED
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader
from areal_tasks.quickstart.quickstart import preset_path

from .killed_run import CTRL_C, NOBODY

STEPS, PROMPTS, GROUP = 4, 2, 2
_RUN = (
    f"steps={STEPS}",
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.group_size={GROUP}",
    "rollout.options.deterministic=true",
    "rollout.reward.workers=1",
    "rollout.reward.options.exact=false",
    "rollout.max_replacements=2",
    "actor.backend=reference:d1",
    "checkpoint.every_steps=2",
    "evaluation.data=null",
)
_PATIENCE_S = 300.0
"""For one start of one run on a busy machine; a run that hangs is a fault."""


class Mode(StrEnum):
    """How far generation may be ahead of training."""

    SYNCHRONOUS = "synchronous"
    """The reference backends repeat such a run bit for bit."""
    ASYNCHRONOUS = "asynchronous"

    @property
    def max_staleness(self) -> int:
        """Return the bound of the run."""
        return 0 if self is Mode.SYNCHRONOUS else 2


@frozen(kw_only=True)
class Case:
    """One kill: who, in which run, at which boundary."""

    mode: Mode
    victim: str
    boundary: str

    def __str__(self) -> str:
        return f"{self.mode}: {self.victim} at {self.boundary}"


@frozen(kw_only=True)
class Verdict:
    """What came of a case: how the run went on, and what does not hold; no fault is a pass."""

    case: Case
    ending: str
    faults: tuple[str, ...]


class Enumeration:
    """All cases of one mode on one starting model; the run that nobody kills is made first."""

    def __init__(self, mode: Mode, model: Path, folder: Path) -> None:
        """Make the reference run in `folder`."""
        self._mode, self._model, self._folder = mode, model, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._reference = folder / "reference"
        record = folder / "boundaries.jsonl"
        ended = self._start(self._reference, record, NOBODY, "")
        assert ended.returncode == 0, ended.stdout
        self._boundaries = tuple(read_lines(record))

    def cases(self) -> Iterator[Case]:
        """Yield a case for every boundary and every process that lived there, and Ctrl-C, in the run's order."""
        for line in self._boundaries:
            for victim in (*line["alive"], CTRL_C):
                yield Case(mode=self._mode, victim=victim, boundary=line["boundary"])

    def judge(self, case: Case) -> Verdict:
        """Kill, go on until the run is finished, and say what does not hold. Keeps the run's folder on a fault."""
        name = f"{case.victim}-{case.boundary}".replace(" ", "-").replace("#", "")
        run, record = self._folder / name, self._folder / f"{name}.record"
        shutil.rmtree(run, ignore_errors=True)
        record.unlink(missing_ok=True)
        ended = self._start(run, record, case.victim, case.boundary)
        if not record.exists():
            # What runs side by side need not come as often as in the reference run.
            return Verdict(case=case, ending="the boundary did not come", faults=())
        ending, expected = "went on", (0, INTERRUPTED) if case.victim == CTRL_C else (0, ended.returncode)
        faults = [] if ended.returncode in expected else [f"it stops with {ended.returncode}: {ended.stdout[-2000:]}"]
        if ended.returncode != 0:
            ending, ended = self._again(run)
        faults += (
            [f"it ends with {ended.returncode}: {ended.stdout[-2000:]}"] if ended.returncode else self._faults(run)
        )
        record.unlink()
        if not faults:
            shutil.rmtree(run)
        return Verdict(case=case, ending=ending, faults=tuple(faults))

    def _again(self, run: Path) -> tuple[str, subprocess.CompletedProcess[str]]:
        """Resume from the last checkpoint, or begin anew where the run had not come to one."""
        if any(path.suffix != ".partial" for path in run.glob("checkpoints/step-*")):
            return "resumed", self._areal("areal_core.cli.main", "train", "--resume", str(run))
        shutil.rmtree(run)
        return "began anew", self._areal("areal_core.cli.main", *self._words(run))

    def _start(self, run: Path, record: Path, victim: str, at: str) -> subprocess.CompletedProcess[str]:
        return self._areal("tests.exactly_once.killed_run", str(record), victim, at, *self._words(run))

    def _words(self, run: Path) -> Sequence[str]:
        bound = f"rollout.max_staleness={self._mode.max_staleness}"
        return ("train", str(preset_path("spell")), f"model.path={self._model}", f"out={run}", bound, *_RUN)

    def _areal(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
        )

    def _faults(self, run: Path) -> list[str]:
        """Return what does not hold of a run that ended well."""
        with Reader(run) as reader:
            trained = list(reader.facts(Filter(fate="trained")))
        wanted = Counter(dict.fromkeys(range(1, STEPS + 1), PROMPTS * GROUP))
        faults = [f"episodes of each step: {dict(found)}"] if (found := _count(trained, "step")) != wanted else []
        tasks = Counter((facts["task_index"], facts["member"]) for facts in trained)
        once = Counter((task, member) for task in range(STEPS * PROMPTS) for member in range(GROUP))
        if tasks != once:
            faults.append(f"trained other than once: {dict((once - tasks) + (tasks - once))}")
        staleness = [facts["step"] - 1 - facts["oldest_version"] for facts in trained]
        if not all(0 <= age <= self._mode.max_staleness for age in staleness):
            faults.append(f"staleness {sorted(set(staleness))}")
        steps = [line["step"] for line in read_lines(run / "metrics.jsonl")]
        if steps != list(range(1, STEPS + 1)):
            faults.append(f"steps recorded: {steps}")
        summary = json.loads((run / "summary.json").read_text())
        if summary["status"] != "finished" or summary["episodes_trained"] != STEPS * PROMPTS * GROUP:
            faults.append(f"summary: {summary['status']}, {summary['episodes_trained']} episodes trained")
        if self._mode is Mode.SYNCHRONOUS:
            faults += [f"other bits in {name}" for name in _unequal(_weights(self._reference), _weights(run))]
        return faults


def _count(facts: Sequence[Mapping[str, object]], column: str) -> Counter[object]:
    return Counter(one[column] for one in facts)


def _weights(run: Path) -> Mapping[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{STEPS:06d}" / "model" / "model.safetensors")


def _unequal(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name in sorted({*ours, *theirs}) if not torch.equal(ours[name], theirs[name])]
