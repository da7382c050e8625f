"""Law 4 by enumeration: kill every process of a run, or press Ctrl-C, at every boundary, and look at what was trained.

Knows: the runs, the boundaries a reference run crossed, which of them one run is killed at, and what must hold then.
Does not know: how anything is killed (`killed_run`), or how a run comes to start fast (`prepared`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import psutil
import torch
from attrs import frozen
from safetensors.torch import load_file

from areal_core.cli.main import INTERRUPTED, main
from areal_core.loop.checkpoint import read_progress
from areal_core.observe.events import RUN_RESTARTED
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader

from . import prepared
from .killed_run import CTRL_C, REPLICA, TRAINER, VICTIMS, Killer, Recorder, kills, watch

STEPS, PROMPTS, GROUP = 4, 2, 2
"""As in `run.yaml`."""
_YAML = Path(__file__).with_name("run.yaml")
_PATIENCE_S = 900.0
"""For one start of one run on a busy machine; a run that hangs is a fault."""
_SPARES = {TRAINER: 2 * (STEPS + 1), REPLICA: 2 + STEPS}
"""Trainers and replicas a run starts at most, which loses one in each step; without a loss there are two."""
RESUMED, RESUMED_FROM_BEGINNING = "resumed", "resumed from the beginning"
"""How a run went on whose controller was killed: from its last checkpoint, or without one."""
_STEP = re.compile(r"step (\d+): ")


class Mode(StrEnum):
    """How far generation may be ahead of training."""

    SYNCHRONOUS = "synchronous"
    """The reference backends repeat such a run bit for bit."""
    ASYNCHRONOUS = "asynchronous"
    """Weights as good as stand still, so that a draw depends on its prompt and member alone, not on what was killed."""

    @property
    def max_staleness(self) -> int:
        """Return the bound of the run."""
        return 0 if self is Mode.SYNCHRONOUS else 2

    @property
    def lr(self) -> float:
        """Return the learning rate; one of 1e-30 changes no bit of a weight that is not 0."""
        return 3e-4 if self is Mode.SYNCHRONOUS else 1e-30


@frozen(kw_only=True)
class Case:
    """One kill: who, in which run, at which boundary."""

    mode: Mode
    victim: str
    boundary: str

    def __str__(self) -> str:
        return f"{self.mode}: {self.victim} at {self.boundary}"

    @classmethod
    def of(cls, text: str) -> Case:
        """Return the case of this name."""
        mode, _, rest = text.partition(": ")
        victim, _, boundary = rest.partition(" at ")
        return cls(mode=Mode(mode), victim=victim, boundary=boundary)


@frozen(kw_only=True)
class Verdict:
    """What came of a case: how the run went on, and what does not hold; no fault is a pass."""

    case: Case
    ending: str
    faults: tuple[str, ...] = ()


class Enumeration:
    """All cases of one mode on one starting model; the run that nobody kills is made first, unless it is there."""

    def __init__(self, mode: Mode, model: Path, folder: Path) -> None:
        """Make the reference run in `folder`."""
        self._mode, self._model, self._folder = mode, model, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.reference = folder / "reference"
        record, boundaries = folder / "reference.record", folder / "boundaries.jsonl"
        if not boundaries.exists():
            shutil.rmtree(self.reference, ignore_errors=True)
            record.unlink(missing_ok=True)
            code, output = self._areal(self.reference, lambda: watch(Recorder(record)), self._words(self.reference), 2)
            assert code == 0, output
            record.rename(boundaries)
        self._boundaries = tuple(read_lines(boundaries))

    def cases(self) -> Iterator[Case]:
        """Yield a case for every boundary and every process that lived there, and Ctrl-C, in the run's order."""
        for line in self._boundaries:
            for victim in (*line["alive"], CTRL_C):
                yield Case(mode=self._mode, victim=victim, boundary=line["boundary"])

    def chains(self, cases: Sequence[Case]) -> Iterator[tuple[Case, ...]]:
        """Put cases together that one run can have: one victim, killed in every step."""
        for victim in (*VICTIMS, CTRL_C):
            steps: dict[int, list[Case]] = defaultdict(list)
            for case in cases:
                if case.victim == victim and (found := _STEP.match(case.boundary)):
                    steps[int(found[1])].append(case)
            longest = max(map(len, steps.values()), default=0)
            for place in range(longest):
                yield tuple(own[place] for own in steps.values() if place < len(own))

    def judge(self, chain: Sequence[Case]) -> list[Verdict]:
        """Kill at each of these boundaries, in one run; one by one where that does not tell them apart."""
        endings, faults = self._killed(chain)
        if len(chain) == 1:
            [case] = chain
            # What runs side by side need not come as often as in the reference run.
            ending = endings.get(case.boundary, "the boundary did not come")
            return [Verdict(case=case, ending=ending, faults=tuple(faults))]
        if not faults:
            met = [Verdict(case=case, ending=endings[case.boundary]) for case in chain if case.boundary in endings]
            left = [case for case in chain if case.boundary not in endings]
            return [*met, *(verdict for case in left for verdict in self.judge([case]))]
        alone = [verdict for case in chain for verdict in self.judge([case])]
        if not any(verdict.faults for verdict in alone):
            together = " and ".join(str(case) for case in chain)
            alone[0] = Verdict(case=chain[0], ending=alone[0].ending, faults=(f"together, {together}:", *faults))
        return alone

    def _killed(self, chain: Sequence[Case]) -> tuple[Mapping[str, str], list[str]]:
        """Start, and go on after every kill until the run ends by itself; keeps the run's folder on a fault."""
        victim = chain[0].victim
        name = re.sub(r"[^\w-]+", "-", f"{victim} {chain[0].boundary} {len(chain)}")
        run, record = self._folder / name, self._folder / f"{name}.record"
        shutil.rmtree(run, ignore_errors=True)
        record.unlink(missing_ok=True)
        words, endings, faults = self._words(run), dict[str, str](), list[str]()
        ended = {CTRL_C: (0, INTERRUPTED)}.get(victim)

        def armed() -> None:
            watch(Killer(record, victim, [case.boundary for case in chain]))

        while True:
            code, output = self._areal(run, armed, words, _SPARES.get(victim, 2))
            new = [boundary for boundary in kills(record) if boundary not in endings]
            endings.update(dict.fromkeys(new, "went on"))
            if code == 0:
                faults += self._faults(run)
                break
            if not new or (ended is not None and code not in ended):
                faults.append(f"it stops with {code}: {output[-2000:]}")
                break
            saved = any(path.suffix != ".partial" for path in run.glob("checkpoints/step-*"))
            endings[new[-1]] = RESUMED if saved else RESUMED_FROM_BEGINNING
            words = ("train", "--resume", str(run))
        record.unlink(missing_ok=True)
        if not faults:
            shutil.rmtree(run)
            run.with_name(f"{run.name}.output").unlink()
        return endings, faults

    def _words(self, run: Path) -> Sequence[str]:
        kind = f"rollout.max_staleness={self._mode.max_staleness}", f"actor.optimizer.lr={self._mode.lr}"
        return ("train", str(_YAML), f"model.path={self._model}", f"out={run}", *kind)

    def _areal(
        self, run: Path, begin: Callable[[], None], words: Sequence[str], num_spares: int
    ) -> tuple[int | None, str]:
        """Run `areal` to its end; return its exit code and what it printed."""

        def program() -> int:
            begin()
            return main(words)

        output = run.with_name(f"{run.name}.output")
        output.unlink(missing_ok=True)
        process = prepared.start(program, output, num_spares)
        try:
            code = process.wait(_PATIENCE_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        return code, output.read_text(errors="replace")

    def _faults(self, run: Path) -> list[str]:
        """Return what does not hold of a run that ended well."""
        with Reader(run) as reader:
            finished = [facts for facts in reader.facts(Filter(kind="train")) if facts["outcome"] == "finished"]
        trained = [facts for facts in finished if facts["fate"] == "trained"]
        wanted = Counter(dict.fromkeys(range(1, STEPS + 1), PROMPTS * GROUP))
        faults = [f"episodes of each step: {dict(found)}"] if (found := _count(trained, "step")) != wanted else []
        tasks = Counter((facts["task_index"], facts["member"]) for facts in trained)
        once = Counter((task, member) for task in self._used(run) for member in range(GROUP))
        if tasks != once or len(once) != STEPS * PROMPTS * GROUP:
            faults.append(f"trained other than once: {dict((once - tasks) + (tasks - once))}")
        staleness = [facts["step"] - 1 - facts["oldest_version"] for facts in trained]
        if not all(0 <= age <= self._mode.max_staleness for age in staleness):
            faults.append(f"staleness {sorted(set(staleness))}")
        faults += self._biased(finished)
        steps = [line["step"] for line in read_lines(run / "metrics.jsonl")]
        if steps != list(range(1, STEPS + 1)):
            faults.append(f"steps recorded: {steps}")
        summary = json.loads((run / "summary.json").read_text())
        if summary["status"] != "finished" or summary["episodes_trained"] != STEPS * PROMPTS * GROUP:
            faults.append(f"summary: {summary['status']}, {summary['episodes_trained']} episodes trained")
        restarts = [event for event in read_lines(run / "events.jsonl") if event["kind"] == RUN_RESTARTED]
        if not all(event["kept"] for event in restarts):
            faults.append("a fleet that served was started anew")
        if self._mode is Mode.SYNCHRONOUS:
            faults += [f"other bits in {name}" for name in _unequal(_weights(self.reference), _weights(run))]
        return faults

    def _used(self, run: Path) -> Sequence[int]:
        """Return the tasks that are to be trained; a resume issues all others.

        An asynchronous run trains what is finished first: it may end with a task left out that it has begun. Which
        these are has to be on record, and no task may be far ahead of them.
        """
        if self._mode is Mode.SYNCHRONOUS:
            return range(STEPS * PROMPTS)
        tasks = read_progress(run / "checkpoints" / f"step-{STEPS:06d}").tasks["tasks"]
        bound = (STEPS + self._mode.max_staleness) * PROMPTS
        return [task for task in (*range(tasks["frontier"]), *tasks["used"]) if task < bound]

    def _biased(self, finished: Sequence[Mapping[str, object]]) -> list[str]:
        """Return where a kill changed a length, trained or only drawn: what is drawn again has to be the same.

        Were it not, kills would favour short answers: those are finished more often when somebody dies.
        """
        with Reader(self.reference) as reader:
            drawn = [facts for facts in reader.facts(Filter(kind="train")) if facts["outcome"] == "finished"]
        wanted = {_place(facts): facts["output_tokens"] for facts in drawn}
        lengths = defaultdict(set)
        for facts in finished:
            lengths[_place(facts)].add(facts["output_tokens"])
        return [
            f"lengths of task {place[0]}, member {place[1]}: {sorted(map(str, lengths[place]))}, undisturbed {length}"
            for place, length in sorted(wanted.items())
            if place in lengths and lengths[place] != {length}
        ]


def _place(facts: Mapping[str, object]) -> tuple[int, int]:
    return int(str(facts["task_index"])), int(str(facts["member"]))


def _count(facts: Sequence[Mapping[str, object]], column: str) -> Counter[object]:
    return Counter(one[column] for one in facts)


def _weights(run: Path) -> Mapping[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{STEPS:06d}" / "model" / "model.safetensors")


def _unequal(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name in sorted({*ours, *theirs}) if not torch.equal(ours[name], theirs[name])]
