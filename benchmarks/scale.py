"""What an episode costs the controller with 1,000 to 100,000 in flight, and with 1 to 512 replicas.

Executor, gate, pool and sessions are a run's own. The engines are echoes in this process: they keep what they are asked
and answer the oldest requests once everything the gate admits is in flight. Processor time is that of all episodes from
the first admission until the last one ended; memory is what the process grew by until all were in flight, for each of
them, the echo's own share included. Every case is a fresh interpreter.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
import psutil
from attrs import frozen

from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, VersionSpan
from areal_core.fleet.pool import InferencePool
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.tasks import TaskSource
from areal_local.own_process import as_controller

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the repository
from tests.benches.rollouts import NoTokenizer, ScriptedWorkflow

GROUP, STALENESS, TOKENS = 8, 4, 32
EPISODES = 20_000
"""At least; and at least as many as twice those in flight."""
BYTES = 4096
"""What an episode in flight may take."""
ROWS = [{"input_ids": [3 + number % 20, 4, 5, 6]} for number in range(512)]


@frozen
class Case:
    """How many episodes are in flight over how many replicas."""

    in_flight: int
    replicas: int

    def __str__(self) -> str:
        return f"{self.in_flight}/{self.replicas}"


CASES = (*(Case(n, 8) for n in (1_000, 10_000, 100_000)), *(Case(10_000, replicas) for replicas in (1, 64, 512)))
QUICK = (Case(200, 2), Case(400, 2))


class Echo:
    """All replicas of a fleet: keeps requests until they are answered, oldest first; `full` while it has `number`."""

    def __init__(self, number: int) -> None:
        self.version = 0
        self.asked: deque[asyncio.Future[Generation]] = deque()
        self.full = asyncio.Event()
        self._number = number

    def ask(self) -> asyncio.Future[Generation]:
        """Keep one request more."""
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        if len(self.asked) == self._number:
            self.full.set()
        return future

    def answer(self, number: int) -> None:
        """Answer so many requests."""
        self.full.clear()
        for _ in range(number):
            self.asked.popleft().set_result(
                Generation(
                    output_ids=range(TOKENS),
                    logprobs=(-0.5,) * TOKENS,
                    version_spans=(VersionSpan(start=0, stop=TOKENS, version=self.version),),
                    stop_reason=StopReason.STOP,
                )
            )


class EchoWorker:
    """One replica."""

    host = "127.0.0.1"

    def __init__(self, number: int, echo: Echo) -> None:
        self.id, self._echo = f"rollout/{number}", echo

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer generate, the only call made here, when it is time. Any: as in the contract."""
        assert method == "generate", method
        return await self._echo.ask()


async def measure(case: Case, episodes: int) -> dict[str, float]:
    """Return the figures of one case, so many episodes or twice those in flight."""
    echo = Echo(case.in_flight)
    config = RolloutConfig(
        prompts_per_step=case.in_flight // GROUP // (STALENESS + 1), group_size=GROUP, max_staleness=STALENESS
    )
    batch = config.prompts_per_step * GROUP
    steps = max(episodes, 2 * case.in_flight) // batch
    executor = _executor(config, [EchoWorker(number, echo) for number in range(case.replicas)])
    gc.collect()
    gc.freeze()  # as a run does
    with as_controller():
        before, began = psutil.Process().memory_info().rss, time.process_time()
        executor.start()
        await echo.full.wait()
        grown = psutil.Process().memory_info().rss - before
        for version in range(1, steps + 1):
            echo.answer(batch)
            await executor.next_batch()
            echo.version = version
            if last := version + STALENESS >= steps:
                executor.hold()  # nothing more is begun for steps that never come
            executor.set_version(version)
            if not last:
                await echo.full.wait()
        spent = time.process_time() - began
    consumed = executor.stats().episodes_consumed
    await executor.close()
    return {"microseconds": spent / consumed * 1e6, "bytes": grown / case.in_flight, "episodes": float(consumed)}


def _executor(config: RolloutConfig, workers: list[EchoWorker]) -> RolloutExecutor:
    sessions = PoolSessions(
        pool=InferencePool(workers), rewards=None, tokenizer=NoTokenizer(), sampling=config.sampling, seed=1
    )
    tasks = TaskSource(ROWS, seed=1)
    return RolloutExecutor(workflow=ScriptedWorkflow(), tasks=tasks, sessions=sessions, config=config)


def _child(case: Case, quick: bool) -> dict[str, float]:
    """Measure in a fresh interpreter."""
    command = [sys.executable, str(Path(__file__).resolve()), "--only", str(case), *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900, env=dict(os.environ))
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Measure every case in turns, or one of them in this process."""
    parser = frame.parser(__doc__)
    parser.add_argument("--only", metavar="IN_FLIGHT/REPLICAS", help="measure this case here and print its figures")
    options = parser.parse_args()
    cases, repeats, episodes = (QUICK, 1, 800) if options.quick else (CASES, 5, EPISODES)
    if options.only is not None:
        frame.one_thread()
        print(json.dumps(frame.run(measure(Case(*map(int, options.only.split("/"))), episodes))))
        return 0
    seen: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case, figures in seen.items():
            figures.append(_child(case, options.quick))
            print(f"{case}: {figures[-1]}", flush=True)
    for result in results(seen):
        frame.finish(result, quick=options.quick)
    return 0


def results(seen: Mapping[Case, Sequence[Mapping[str, float]]]) -> list[frame.Result]:
    """Return what is told of the turns of every case, the first of which the others are compared with."""
    cost, size = (
        {case: [each[name] for each in figures] for case, figures in seen.items()} for name in ("microseconds", "bytes")
    )
    first = next(iter(seen))
    details = {
        "by_in_flight_and_replicas": {
            str(case): {name: statistics.median(each[name] for each in figures) for name in figures[0]}
            for case, figures in seen.items()
        },
        "spread": {str(case): frame.spread(values) for case, values in cost.items()},
        "spread_of_bytes": {str(case): frame.spread(values) for case, values in size.items()},
        "tokens": TOKENS,
        "group_size": GROUP,
        "max_staleness": STALENESS,
    }
    return [
        frame.Result(
            name="scale",
            figure=frame.largest(frame.Figure.of(values, cost[first]) for values in cost.values()),
            what=f"processor time of the controller for an episode, the worst case / {first.in_flight} in flight",
            details=details,
        ),
        frame.Result(
            name="scale_bytes",
            script="scale",
            figure=frame.largest(frame.Figure.of(values, BYTES) for values in size.values()),
            what=f"bytes that the controller holds for each episode in flight, the worst case / {BYTES:,}",
            details=details,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
