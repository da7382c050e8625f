"""What torch's profiler saw of single steps, as files for Perfetto: `RUN/profile/step-5/actor-rank0.json.gz`.

    with self._traces.step(self.version + 1, rank, "train_step"):      # nothing but a lookup in most steps
        ...
    self._traces.end()                                                 # the step is over: its file is written

Knows: which steps a worker was asked for, when a record begins and ends, and where it goes.
Does not know: what a step consists of; engines say so. A record that fails is told in the worker's log and ends no run.
"""

from __future__ import annotations

import gzip
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch.profiler import profile, record_function, supported_activities

from areal_torch.profile import Asked, asked_of

logger = logging.getLogger("areal.profile")

_COMPRESSION = 3
"""A fifth larger than gzip's default and several times as fast: a worker waits for it."""


class StepTraces:
    """The traces of one worker. Every method is called by the thread whose work is traced."""

    def __init__(self, asked: Asked) -> None:
        """Trace what is asked for; without steps, nothing."""
        self._asked = asked
        self._step = 0  # the last one that was recorded
        self._calls = 0
        self._profiler: profile | None = None
        self._path = asked.folder

    @classmethod
    def asked(cls, environ: Mapping[str, str], replica: int = 0) -> StepTraces:
        """Return the traces that the environment asks for."""
        return cls(asked_of(environ, replica))

    def step(self, step: int, rank: int, what: str, *, calls: int | None = None) -> AbstractContextManager[object]:
        """Return what a part of a step runs in: a record of it, begun with the first part, if the step is asked for.

        Args:
            step: the step of the run, from 1.
            rank: this worker's, for the name of the file.
            what: how the trace calls the part.
            calls: parts after which the record ends, for steps that have more of them than anybody looks at.
        """
        if step not in self._asked.steps:
            return nullcontext()
        if step != self._step:
            self.end()
            self._begin(step, rank)
        self._calls += 1
        if calls is not None and self._calls > calls:
            self.end()
        return nullcontext() if self._profiler is None else record_function(f"areal: {what}")

    @contextmanager
    def after(self, step: int, rank: int, what: str) -> Iterator[None]:
        """Record what follows on a step recorded here, in a file of its own: `<role>-rank<n>-<what>.json.gz`."""
        if step not in self._asked.steps or step != self._step:
            yield
            return
        self.end()
        self._begin(step, rank, what)
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """End the record and write its file, whole or not at all. Idempotent."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        raw = self._path.with_name(f".{self._path.stem}.part")
        packed = self._path.with_name(f".{self._path.name}.part")
        try:
            profiler.stop()
            self._asked.make_folder(self._step)
            profiler.export_chrome_trace(str(raw))
            with raw.open("rb") as source, gzip.open(packed, "wb", compresslevel=_COMPRESSION) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            packed.chmod(0o600)
            packed.rename(self._path)
        except (OSError, RuntimeError) as error:
            logger.warning("no trace %s: %s", self._path, error)
        finally:
            raw.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)

    def _begin(self, step: int, rank: int, what: str = "") -> None:
        self._step, self._calls = step, 0
        self._path = self._asked.file(step, rank, what)
        activities = supported_activities()  # type: ignore[no-untyped-call]
        profiler = profile(activities=activities, record_shapes=True)
        try:
            profiler.start()
        except RuntimeError as error:  # another profiler is at work in this process
            logger.warning("no trace %s: %s", self._path, error)
        else:
            self._profiler = profiler
