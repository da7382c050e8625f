"""What an episode costs the controller with 512 replicas and 10,000 episodes in flight, over 1, 2 and 4 processes.

Workflow, tokenizer and reward are the quickstart's, in real processes of the local scheduler. The replicas are
simulated in the controller: each answers after a second of the clock. Every number of processes is a fresh controller.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frame
import psutil
import runs

from areal_core.config.model_folder import load_tokenizer
from areal_core.config.plan import make_plan
from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, GenerationRequest, VersionSpan
from areal_core.contract.workflow import RolloutWorkflow
from areal_core.fleet.pool import InferencePool
from areal_core.loop.launch import make_scheduler
from areal_core.observe.events import ignore_event
from areal_core.plugins.extensions import MakeRewardPool, need
from areal_core.plugins.registry import default_registry
from areal_core.rollout.episodes import EpisodeRunner
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.tasks import TaskSource
from areal_rollouts.processes import RolloutProcesses

PROCESSES = (1, 2, 4)
REPLICAS, IN_FLIGHT, GROUP, STEPS = 512, 10_000, 8, 2
ANSWER_S, TOKENS = 1.0, 16


class EchoWorker:
    """A replica without a model: answers after ANSWER_S with tokens of the prompt."""

    host = "127.0.0.1"

    def __init__(self, number: int) -> None:
        self.id = f"rollout.{number}/0"
        self.version = 0

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer generate, the only call made here. Any: as in the contract."""
        assert method == "generate", method
        request: GenerationRequest = args[0]
        await asyncio.sleep(ANSWER_S)
        prompt = request.input_ids
        return Generation(
            output_ids=tuple(prompt[place % len(prompt)] for place in range(TOKENS)),
            logprobs=(-0.5,) * TOKENS,
            version_spans=(VersionSpan(start=0, stop=TOKENS, version=self.version),),
            stop_reason=StopReason.LENGTH,
        )


async def measure(processes: int, *, replicas: int, in_flight: int, folder: Path, model: Path) -> dict[str, float]:
    """Return the figures of one controller over so many processes; 0 makes the episodes in the controller itself."""
    groups = in_flight // GROUP
    config = runs.preset(
        "spell",
        [
            f"model.path={model}",
            f"rollout.processes={processes}",
            f"rollout.prompts_per_step={groups // 2}",
            f"rollout.group_size={GROUP}",
            "rollout.max_staleness=1",
            f"out={folder}",
        ],
    )
    registry = default_registry()
    plan = make_plan(config, registry, {})
    workers = [EchoWorker(number) for number in range(replicas)]
    pool = InferencePool(workers)
    scheduler = make_scheduler(config, registry, folder / "logs")
    elsewhere = RolloutProcesses(plan, scheduler, ignore_event) if processes else None
    make: MakeRewardPool = need("rewards", "this benchmark")
    reward = config.rollout.reward
    rewards = make(
        *(reward.name, reward.options), imports=(), workers=reward.workers, timeout_s=reward.timeout_s, tell=_nowhere
    )
    try:
        await (elsewhere or rewards).start()
        executor = _executor(config.rollout, plan, pool, rewards, elsewhere)
        before = psutil.Process().memory_info().rss
        spent, began = time.process_time(), time.perf_counter()
        executor.start()
        most = 0
        for version in range(STEPS):
            batch = asyncio.ensure_future(executor.next_batch())
            while not batch.done():
                most = max(most, psutil.Process().memory_info().rss)
                await asyncio.wait({batch}, timeout=0.2)
            batch.result()
            if version + 1 == STEPS:
                executor.hold()
            for worker in workers:
                worker.version = version + 1
            executor.set_version(version + 1)
        stats = executor.stats()
        ended = (stats.consumed + stats.buffered) * GROUP
        figures = {
            "microseconds_per_episode": (time.process_time() - spent) / ended * 1e6,
            "episodes_per_s": ended / (time.perf_counter() - began),
            "bytes_per_episode": (most - before) / in_flight,
            "episodes": float(ended),
        }
        await executor.close()
        return figures
    finally:
        await (elsewhere or rewards).close()
        await scheduler.close()


def _executor(
    config: RolloutConfig, plan: Any, pool: InferencePool, rewards: Any, elsewhere: RolloutProcesses | None
) -> RolloutExecutor:  # Any: as a run has them
    registry = default_registry()
    tokenizer = load_tokenizer(plan.role("rollout").model.path)
    workflow = registry.build("workflow", config.workflow.name, config.workflow.options)
    rows = registry.build("dataset", plan.config.data.name, plan.config.data.options)
    assert isinstance(workflow, RolloutWorkflow)
    assert isinstance(rows, Sequence)
    return RolloutExecutor(
        workflow=workflow,
        tasks=TaskSource(rows, seed=1),
        sessions=PoolSessions(pool=pool, rewards=rewards, tokenizer=tokenizer, sampling=config.sampling, seed=1),
        config=config,
        runner=elsewhere.runner(pool) if elsewhere else EpisodeRunner,
    )


def _nowhere(kind: str, **fields: Any) -> None:  # Any: plain data
    """Take no events."""


def _child(processes: int, arguments: Sequence[str]) -> dict[str, float]:
    """Measure in a fresh interpreter."""
    command = [sys.executable, str(Path(__file__).resolve()), "--only", str(processes), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900, env=dict(os.environ))
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Measure every number of processes in turns, or one of them in this process."""
    parser = frame.parser(__doc__)
    parser.add_argument("--only", type=int, help="measure with so many processes and print the figures")
    parser.add_argument("--model", type=Path, help="the starting model; made if it is not given")
    options = parser.parse_args()
    replicas, in_flight, repeats = (8, 160, 1) if options.quick else (REPLICAS, IN_FLIGHT, 5)
    with tempfile.TemporaryDirectory() as scratch:
        model = options.model or runs.starting_model("spell", Path(scratch), quick=True)
        if options.only is not None:
            frame.one_thread()
            work = measure(options.only, replicas=replicas, in_flight=in_flight, folder=Path(scratch), model=model)
            print(json.dumps(frame.run(work)))
            return 0
        given = ["--model", str(model), *(["--quick"] if options.quick else [])]
        seen: dict[int, list[dict[str, float]]] = {count: [] for count in (0, *PROCESSES)}
        for _ in range(repeats):
            for count, figures in seen.items():
                figures.append(_child(count, given))
                print(f"{count} processes: {figures[-1]}", flush=True)
    middle = {
        count: {name: statistics.median(each[name] for each in figures) for name in figures[0]}
        for count, figures in seen.items()
    }
    cost = {count: [each["microseconds_per_episode"] for each in figures] for count, figures in seen.items()}
    result = frame.Result(
        name="rollout_processes",
        figure=frame.Figure.of(cost[PROCESSES[-1]], cost[PROCESSES[0]]),
        what=f"processor time of the controller for an episode over {PROCESSES[-1]} processes / over 1",
        details={
            "replicas": replicas,
            "in_flight": in_flight,
            "tokens": TOKENS,
            "by_processes": middle,
            "microseconds_per_episode": cost,
            "against_none": frame.Figure.of(cost[PROCESSES[-1]], cost[0]),
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
