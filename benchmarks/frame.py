"""What every benchmark shares: timing, the facts of the machine, and how a result is kept.

Knows: how to time actions against each other, and the shape of `results/NAME.json`.
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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import quiet
from attrs import asdict, frozen

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

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Summarise repeats."""
        return cls(median=statistics.median(seconds), fastest=min(seconds), slowest=max(seconds), repeats=len(seconds))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median of repeats and how far they went to both sides."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


@frozen(kw_only=True)
class Result:
    """One benchmark's answer. The goal is met at or above `target`, or at or below it if `lower_is_better`.

    Example: Result(name="packing", ratio=2.4, target=1.5, what="padded step / packed step")
    """

    name: str
    ratio: float
    target: float | None
    what: str
    lower_is_better: bool = False
    script: str = ""
    """The script's name where it is not the result's."""
    details: Mapping[str, Any] = {}  # Any: json

    @property
    def met(self) -> bool | None:
        """Tell whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.ratio <= self.target if self.lower_is_better else self.ratio >= self.target

    def line(self) -> str:
        """Return the one line that is printed."""
        sign = "<=" if self.lower_is_better else ">="
        goal = "no target" if self.target is None else f"target {sign} {self.target:g}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return f"{self.name}: {self.ratio:.3g} ({self.what}; {goal}) {verdict}".rstrip()


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
        "ratio": result.ratio,
        "target": result.target,
        "lower_is_better": result.lower_is_better,
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
    return asdict(value) if isinstance(value, Timing) else str(value)
