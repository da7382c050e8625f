"""What every benchmark shares: timing, the facts of the machine, and how a result is kept.

Knows: how to time actions against each other, how turns become a figure, and the shape of `results/NAME.json`.
Does not know: what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import quiet
from attrs import asdict, frozen
from goals import Goal, goal_of

from areal_core.plugins import devices
from areal_core.plugins.registry import default_registry

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
T = TypeVar("T")
PACKAGES = ("torch", "transformers", "areal-core", "areal-reference", "areal-fsdp")


@frozen(kw_only=True)
class Timing:
    """Seconds of several repeats of one action, after a warm-up that is not counted."""

    median: float
    fastest: float
    slowest: float
    repeats: int
    seconds: tuple[float, ...]
    """Of each, in the order of the turns."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Summarise repeats."""
        return cls(
            median=statistics.median(seconds),
            fastest=min(seconds),
            slowest=max(seconds),
            repeats=len(seconds),
            seconds=tuple(seconds),
        )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median of repeats and how far they went to both sides."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


@frozen(kw_only=True)
class Figure:
    """A ratio of two sides that were measured in turns, and how far the ratio of a single turn went.

    Example: Figure(ratio=2.4, repeats=5, spread=(2.1, 2.5))
    """

    ratio: float
    repeats: int
    spread: tuple[float, float] | None
    """The least and the most of one turn; None if there was one only."""

    @classmethod
    def of(
        cls,
        over: Sequence[float],
        under: Sequence[float] | float = 1.0,
        *,
        middle: Callable[[Sequence[float]], float] = statistics.median,
    ) -> Figure:
        """Divide what was measured by another side or by a constant; values at one place are of one turn.

        `middle` makes one value of those of a side, before they are divided.
        """
        below = [under] * len(over) if isinstance(under, float | int) else under
        turns = [value / other for value, other in zip(over, below, strict=True)]
        told = (min(turns), max(turns)) if len(turns) > 1 else None
        return cls(ratio=middle(over) / middle(below), repeats=len(turns), spread=told)

    def __str__(self) -> str:
        """Say it in few characters."""
        if self.spread is None:
            return f"{self.ratio:.3g}, measured once"
        least, most = self.spread
        return f"{self.ratio:.3g}, {least:.3g} to {most:.3g} in {self.repeats} turns"


def smallest(figures: Iterable[Figure]) -> Figure:
    """Return the figure of the least ratio."""
    return min(figures, key=lambda figure: figure.ratio)


def largest(figures: Iterable[Figure]) -> Figure:
    """Return the figure of the greatest ratio."""
    return max(figures, key=lambda figure: figure.ratio)


@frozen(kw_only=True)
class Result:
    """One benchmark's answer; what it is to reach is in `goals`, by its name.

    Example: Result(name="packing", figure=Figure.of(padded_s, packed_s), what="padded step / packed step")
    """

    name: str
    figure: Figure
    what: str
    script: str = ""
    """The script's name where it is not the result's."""
    details: Mapping[str, Any] = {}  # Any: json

    @property
    def goal(self) -> Goal:
        """Return what it is to reach."""
        return goal_of(self.name)

    @property
    def met(self) -> bool | None:
        """Tell whether that is reached; None where there is no goal."""
        return self.goal.met(self.figure.ratio)

    def line(self) -> str:
        """Return the one line that is printed."""
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return f"{self.name}: {self.figure} ({self.what}; goal: {self.goal}) {verdict}".rstrip()


class _Parser(argparse.ArgumentParser):
    """Reads a benchmark's arguments, and lets it begin on an idle machine only."""

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:  # Any: as argparse has it
        options = super().parse_args(*args, **kwargs)
        if not options.quick:
            quiet.refuse_if_busy(anyway=options.busy)
        return options


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--quick` and `--busy`, described by the module's docstring."""
    made = _Parser(description=(doc or "").split("\n", 1)[0])
    made.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast is it")
    made.add_argument("--busy", action="store_true", help="measure although other work is going on")
    return made


def compare(actions: Mapping[str, Callable[[], object]], *, repeats: int, warmup: int = 1) -> dict[str, Timing]:
    """Time actions in turns, so that a change in the machine's load meets all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(warmup + repeats):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - began)
    return {name: Timing.of(values) for name, values in seconds.items()}


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the event loop the command line uses. Any: asyncio's own."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def finish(result: Result, *, quick: bool) -> int:
    """Print the line, keep the json, return the exit code 0. Quick results go to a folder of their own."""
    folder = RESULTS / "quick" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "name": result.name,
        **asdict(result.figure),
        **asdict(result.goal),
        "met": result.met,
        "what": result.what,
        "quick": quick,
        "command": " ".join(["python", f"benchmarks/{result.script or result.name}.py", *sys.argv[1:]]),
        "machine": machine() | {"busy_cores_at_end": quiet.busy_at_end()},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "details": result.details,
    }
    text = json.dumps(record, indent=2, default=_plain)
    (folder / f"{result.name}.json").write_text(text + "\n")
    print(result.line(), flush=True)
    return 0


def machine() -> dict[str, Any]:
    """Return processor, cores this process may use, load, and versions. Any: json."""
    return {
        "cpu": _cpu_model(),
        "accelerators": accelerators(),
        "cores": num_cores(),
        "load": os.getloadavg()[0],
        "busy_cores_at_start": quiet.busy_at_start(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def accelerators() -> list[str]:
    """Return the names of the accelerators of this machine."""
    return [seen.name for kind in devices.accelerators(default_registry()) for seen in kind.see(os.environ)]


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_thread() -> None:
    """Make torch compute on one thread in this process."""
    import torch

    torch.set_num_threads(1)


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Timing | Figure) else str(value)
