"""A run of the tiny model in processes of its own, started, resumed and interrupted as a person would.

Knows: command lines, exit codes, what is left of a run when it has ended, and what must hold of one that is finished.
Does not know: when anything is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import TracebackType

import psutil
from attrs import define, field

from areal_core.cli.main import INTERRUPTED
from areal_core.loop.checkpoint import read_progress
from areal_core.loop.run_folder import RunFolder
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model

from . import watch
from .judge import Episode, not_whole

PROMPTS, GROUP, MAX_STALENESS = 2, 2, 2
SETTINGS = (
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.group_size={GROUP}",
    f"rollout.max_staleness={MAX_STALENESS}",
    "rollout.sampling.max_new_tokens=8",
    "rollout.reward.workers=1",
    "rollout.reward.options.exact=false",
    "actor.backend=reference:d1",
    "evaluation.data=null",
)
FOR_EVER = 10_000_000
"""Steps of a run that is told its end only when its time is over."""
PATIENCE_S = 1800.0
"""For one thing to come on a busy machine; a run that takes longer hangs. A run itself waits 600 s for its workers."""
_LOOK_S = 2.0
_GONE_S = 30.0
"""For the processes of a run whose controller is gone to go, too."""


@define
class Start:
    """One `areal train`, new or resumed."""

    process: subprocess.Popen[bytes]
    mark: str
    log: Path
    begun: float

    def output(self) -> str:
        """Return all it has printed."""
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = PATIENCE_S) -> int | None:
        """Return the exit code, or None for one that does not end: it is killed with all it started."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def interrupt(self) -> None:
        """Press Ctrl-C: the signal goes to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """End every process with SIGKILL."""
        for process in watch.marked(self.mark):
            process.kill()
        self.process.wait()

    def survivors(self) -> list[str]:
        """Return what still lives of a start whose controller has ended, after a while."""
        left = list(watch.marked(self.mark))
        _, alive = psutil.wait_procs(left, timeout=_GONE_S)
        return [f"process {each.pid}: {' '.join(each.cmdline())[:200]}" for each in alive if each.is_running()]


@define
class Machine:
    """Where runs of one soak live: a scratch folder, a folder for their sockets, their starting model."""

    scratch: Path
    model: Path
    sockets: Path
    segments: watch.Segments = field(factory=watch.Segments)
    _starts: list[Start] = field(factory=list)
    _closed: bool = False
    _numbers: Iterator[int] = field(factory=count)

    @classmethod
    def make(cls, scratch: Path) -> Machine:
        """Make the model, and a folder with a name short enough for sockets."""
        model = make_spell_model(scratch / "model", seed=1)
        return cls(scratch=scratch, model=model, sockets=Path(tempfile.mkdtemp(prefix="soak-")))

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        if not self.left():
            self.sockets.rmdir()

    def close(self) -> None:
        """End what still runs; nothing more is started."""
        self._closed = True
        for start in self._starts:
            start.kill()

    def new(self, run: Path, *overrides: str) -> Start:
        """Start a run."""
        words = (str(preset_path("spell")), f"model.path={self.model}", f"out={run}", *SETTINGS, *overrides)
        return self._areal(run, *words)

    def resume(self, run: Path, *overrides: str) -> Start:
        """Resume it."""
        return self._areal(run, "--resume", str(run), *overrides)

    def again(self, run: Path, *overrides: str) -> Start:
        """Resume it, or start it anew where it had not come to its beginning, as its last words say."""
        if resumable(run):
            return self.resume(run, *overrides)
        return self.new(run, "--archive", *overrides)

    def goes_on(self, start: Start, run: Path, seconds: float, *, from_a_step: bool) -> bool:
        """Leave a run alone for a while, counted from its next step or from now; tell whether it still goes on.

        One that makes no step for very long hangs: it is ended, and told as such.
        """
        metrics, deadline = run / "metrics.jsonl", time.monotonic() + PATIENCE_S
        written = _size(metrics)
        while from_a_step and _size(metrics) <= written:
            if time.monotonic() > deadline:
                start.kill()
            if start.process.poll() is not None:
                return False
            written = min(written, _size(metrics))  # a resume takes back what came after its checkpoint
            self._look(start)
        deadline = time.monotonic() + seconds
        while start.process.poll() is None and time.monotonic() < deadline:
            self._look(start, deadline - time.monotonic())
        return start.process.poll() is None

    def left(self) -> list[str]:
        """Return sockets and segments of shared memory that are still there: of runs that ended by themselves, none."""
        sockets = [f"socket {path.relative_to(self.sockets)}" for path in self.sockets.rglob("*")]
        return [*sockets, *(f"shared memory {name}" for name in self.segments.left())]

    def _look(self, start: Start, most_s: float = _LOOK_S) -> None:
        self.segments.look(start.mark)
        time.sleep(min(_LOOK_S, max(0.0, most_s)))  # between looks at another process; nothing is assumed of its length

    def _areal(self, run: Path, *words: str) -> Start:
        assert not self._closed
        number = next(self._numbers)
        mark, log = f"{os.getpid()}.{number}", self.scratch / f"{run.name}-{number}.log"
        temporary = {"TMPDIR": str(self.sockets), "XDG_RUNTIME_DIR": str(self.sockets)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "areal_core.cli.main", "train", *words],
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, "OMP_NUM_THREADS": "1", **temporary, watch.MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        start = Start(process=process, mark=mark, log=log, begun=time.monotonic())
        self._starts.append(start)
        return start


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def resumable(run: Path) -> bool:
    """Tell whether a run says that it can go on: from a whole checkpoint, or from its beginning."""
    return bool(RunFolder(run).how_to_go_on())


def last_step(run: Path) -> int:
    """Return the last step a run has recorded."""
    lines = list(read_lines(run / "metrics.jsonl")) if (run / "metrics.jsonl").exists() else []
    return int(lines[-1]["step"]) if lines else 0


def furthest_step(run: Path) -> int:
    """Return the furthest step a run has begun; what a resume took back of it is lost if the run ends before."""
    return max(
        (event["version"] + 1 for event in read_lines(run / "events.jsonl") if event["kind"] == "batch_handed_over"),
        default=0,
    )


def interrupted_badly(code: int | None, output: str, run: Path) -> list[str]:
    """Return what is wrong with the end of a start after Ctrl-C."""
    # Python ends by the signal itself where Ctrl-C met code compiled by what it imports; a shell says 130 of both.
    faults = [] if code in (INTERRUPTED, -signal.SIGINT) else [f"it ends with {code}"]
    if "Traceback" in output:
        faults.append("it prints a traceback")
    said = f"areal train --resume {run}" if resumable(run) else "start the run again"
    if said not in output and "interrupted" not in output:
        faults.append(f"it does not say {said!r}")
    return faults and [f"{'; '.join(faults)}: {output[-2000:]}"]


def not_trained_once(run: Path, steps: int) -> list[str]:
    """Return what does not hold of the episodes that a finished run trained; its store has to hold all of them."""
    with Reader(run) as reader:
        trained = Counter(
            Episode(
                task=facts["task_index"],
                member=facts["member"],
                step=facts["step"],
                staleness=facts["step"] - 1 - facts["oldest_version"],
            )
            for facts in reader.facts(Filter(fate="trained"))
        )
    tasks = read_progress(max(run.glob("checkpoints/step-*"))).tasks["tasks"]
    used = [*range(tasks["frontier"]), *tasks["used"]]
    return not_whole(trained, used=used, steps=steps, prompts=PROMPTS, group=GROUP, max_staleness=MAX_STALENESS)


def not_recorded(run: Path, steps: int) -> list[str]:
    """Return what does not hold of a finished run's metrics and summary."""
    recorded = [line["step"] for line in read_lines(run / "metrics.jsonl")]
    found = (
        []
        if recorded == list(range(1, steps + 1))
        else [f"{len(recorded)} steps are recorded, the last as {recorded[-1:]}"]
    )
    summary = json.loads((run / "summary.json").read_text())
    wanted = {"status": "finished", "steps": steps, "episodes_trained": steps * PROMPTS * GROUP}
    wanted |= {"prompts_lost": 0, "prompts_twice": 0}
    return found + [f"summary: {name} {summary[name]}" for name, value in wanted.items() if summary[name] != value]
