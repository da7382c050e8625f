"""Episodes per second through the real RolloutExecutor, against the same episodes in plain asyncio.gather.

The engine answers at once, in this process: what is left is what areal adds to every episode (gate, groups,
routing, seeds, retries, staleness, hand-over). Both sides run the same workflow and build the same trajectories.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import frame

from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import Episode, StopReason
from areal_core.contract.ids import GroupId, RequestId, TaskId
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams, VersionSpan
from areal_core.contract.workflow import Session
from areal_core.fleet.pool import InferencePool
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.tasks import TaskSource

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the repository
from tests.benches.rollouts import NoTokenizer, ScriptedWorkflow

NUM_TOKENS = 32
ROWS = [{"input_ids": [3 + number % 20, 4, 5, 6]} for number in range(512)]


class InstantWorker:
    """A replica without a model: `generate` gives its turn away once and answers."""

    id, host = "infer/0", "127.0.0.1"

    def __init__(self) -> None:
        self.version = 0

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer generate, the only call made here. Any: as in the contract."""
        assert method == "generate", method
        await asyncio.sleep(0)
        return Generation(
            output_ids=range(NUM_TOKENS),
            logprobs=(-0.5,) * NUM_TOKENS,
            version_spans=(VersionSpan(start=0, stop=NUM_TOKENS, version=self.version),),
            stop_reason=StopReason.STOP,
        )


class BareSession:
    """The least a workflow needs: a way to the engine."""

    def __init__(self, worker: InstantWorker, sampling: SamplingParams) -> None:
        self._worker, self._sampling = worker, sampling

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None) -> Generation:
        """Call the engine."""
        request = GenerationRequest(request_id=RequestId("r"), input_ids=input_ids, sampling=self._sampling)
        generation: Generation = await self._worker.call("generate", request, timeout_s=60.0)
        return generation


async def executor_seconds(config: RolloutConfig, num_steps: int) -> float:
    """Run steps through the executor: take a batch, move on to the next version."""
    worker = InstantWorker()
    pool = InferencePool([worker])
    sessions = PoolSessions(pool=pool, rewards=None, tokenizer=NoTokenizer(), sampling=config.sampling, seed=1)
    tasks = TaskSource(ROWS, seed=1)
    executor = RolloutExecutor(workflow=ScriptedWorkflow(), tasks=tasks, sessions=sessions, config=config)
    began = time.perf_counter()
    executor.start()
    for version in range(num_steps):
        groups = await executor.next_batch()
        assert sum(len(group.episodes) for group in groups) == config.prompts_per_step * config.group_size
        worker.version = version + 1
        if version + 1 == num_steps:
            executor.hold()  # nothing more is begun for steps that never come
        executor.set_version(version + 1)
    seconds = time.perf_counter() - began
    stats = executor.stats()
    await executor.close()
    # Groups made ahead for later steps were work as well: seconds per finished group, not per consumed one.
    return seconds / (stats.consumed + stats.buffered) * num_steps * config.prompts_per_step


async def gather_seconds(config: RolloutConfig, num_steps: int) -> float:
    """Run the same episodes, one gather per step."""
    session: Session = BareSession(InstantWorker(), config.sampling)  # type: ignore[assignment]  # generates only
    workflow = ScriptedWorkflow()

    async def episode(number: int) -> Episode:
        trajectory = await workflow.arun_episode(session, ROWS[number % len(ROWS)])
        assert trajectory is not None
        return Episode(trajectories=(trajectory,), task_id=TaskId(str(number)), group_id=GroupId(str(number)))

    began = time.perf_counter()
    for _ in range(num_steps):
        await asyncio.gather(*(episode(n) for n in range(config.prompts_per_step * config.group_size)))
    return time.perf_counter() - began


def main() -> int:
    """Measure both in turns."""
    options = frame.parser(__doc__).parse_args()
    frame.one_thread()
    num_steps, repeats = (3, 2) if options.quick else (20, 7)
    config = RolloutConfig(prompts_per_step=32, group_size=8, max_staleness=2)
    num_episodes = num_steps * config.prompts_per_step * config.group_size
    seconds: dict[str, list[float]] = {"executor": [], "gather": []}
    sides: dict[str, Callable[[RolloutConfig, int], Coroutine[Any, Any, float]]] = {
        "executor": executor_seconds,
        "gather": gather_seconds,
    }
    for number in range(repeats + 1):
        for name, side in sides.items():
            took = frame.run(side(config, num_steps))
            if number:
                seconds[name].append(took)
    timing = {name: frame.Timing.of(values) for name, values in seconds.items()}
    result = frame.Result(
        name="orchestration",
        ratio=timing["gather"].median / timing["executor"].median,
        target=0.8,
        what="episodes/s of the executor / of asyncio.gather",
        details={
            "episodes_per_s": {name: num_episodes / t.median for name, t in timing.items()},
            "microseconds_added_per_episode": 1e6
            * (timing["executor"].median - timing["gather"].median)
            / num_episodes,
            "timing": timing,
            "episodes": num_episodes,
            "tokens_per_episode": NUM_TOKENS,
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
