"""Episodes per second through the real RolloutExecutor, against the same episodes in plain asyncio.gather.

The engine answers at once, in this process: what is left is what areal adds to every episode (gate, groups,
routing, seeds, retries, staleness, hand-over). Both sides run the same workflow and build the same trajectories.
`orchestration_whole` is the same with what both sides need in a run: the engine in a worker of the local scheduler,
and a reward in a process.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import frame
from attrs import evolve, frozen

from areal_core.config.schema import RolloutConfig
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.ids import GroupId, RequestId, TaskId
from areal_core.contract.inference import Generation, GenerationRequest, InferenceSpec, SamplingParams, VersionSpan
from areal_core.contract.scheduler import Job, Worker
from areal_core.contract.workflow import RewardInput, RewardResult, Session, require_ok
from areal_core.fleet.pool import InferencePool
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.tasks import TaskSource
from areal_local.own_process import as_controller
from areal_local.rewards.child import RewardTarget
from areal_local.rewards.pool import RewardPool
from areal_local.scheduler.config import LocalConfig
from areal_local.scheduler.local_scheduler import LocalScheduler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the root of the repository
from tests.benches.rollouts import NoTokenizer, ScriptedWorkflow

ENGINE = Path(__file__).with_name("echo_engine.py")
NUM_TOKENS = 32
ROWS = [{"input_ids": [3 + number % 20, 4, 5, 6]} for number in range(512)]


class InstantWorker:
    """A replica without a model: `generate` gives its turn away once and answers."""

    id, host = "infer/0", "127.0.0.1"
    version = 0

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


class RemoteWorker(InstantWorker):
    """A replica in a process of its own, which knows nothing of versions."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call the engine there. Any: as in the contract."""
        answer = await self._worker.call(method, *args, timeout_s=timeout_s)
        return evolve(answer, version_spans=(VersionSpan(start=0, stop=NUM_TOKENS, version=self.version),))


class ScoredWorkflow(ScriptedWorkflow):
    """Asks for the reward of what it generated, if there is anybody to ask."""

    def __init__(self, rewards: RewardPool | None) -> None:
        super().__init__()
        self._rewards = rewards

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Trajectory | None:
        """Make one trajectory. Any: as in the contract."""
        trajectory = await super().arun_episode(engine, data)
        if self._rewards is not None and trajectory is not None:
            ids = tuple(trajectory.input_ids.tolist())
            value = RewardInput(prompt="a", completion="b", completion_ids=ids, stop_reason="stop", row={"answer": "b"})
            return evolve(trajectory, reward=require_ok(await engine.reward(value), "an episode"))
        return trajectory


@frozen
class Setting:
    """What both sides of a comparison are given."""

    worker: InstantWorker
    rewards: RewardPool | None = None


@asynccontextmanager
async def in_a_run() -> AsyncIterator[Setting]:
    """Yield an engine in a worker of the local scheduler and a reward in a process."""
    with tempfile.TemporaryDirectory() as logs:
        scheduler = LocalScheduler(LocalConfig(log_dir=logs))
        rewards = RewardPool(RewardTarget(name="exact_match", options={}))
        try:
            job = Job(role="echo", engine_role="infer", backend="long_echo", num_workers=1, imports=(str(ENGINE),))
            (worker,) = await scheduler.submit(job)
            await worker.call("start", InferenceSpec(model_path=""), timeout_s=60.0)
            await rewards.start()
            yield Setting(RemoteWorker(worker), rewards)
        finally:
            await rewards.close()
            await scheduler.close()


class BareSession:
    """The least a workflow needs: a way to the engine, and to the reward."""

    def __init__(self, setting: Setting, sampling: SamplingParams) -> None:
        self._worker, self._rewards, self._sampling = setting.worker, setting.rewards, sampling

    async def generate(self, input_ids: Any, sampling: SamplingParams | None = None) -> Generation:
        """Call the engine."""
        request = GenerationRequest(request_id=RequestId("r"), input_ids=input_ids, sampling=self._sampling)
        generation: Generation = await self._worker.call("generate", request, timeout_s=60.0)
        return generation

    async def reward(self, value: RewardInput) -> RewardResult:
        """Call the pool."""
        assert self._rewards is not None
        return await self._rewards.score(value)


async def executor_seconds(setting: Setting, config: RolloutConfig, num_steps: int) -> float:
    """Run steps through the executor: take a batch, move on to the next version."""
    worker, rewards = setting.worker, setting.rewards
    worker.version = 0
    pool = InferencePool([worker])
    sessions = PoolSessions(pool=pool, rewards=rewards, tokenizer=NoTokenizer(), sampling=config.sampling, seed=1)
    tasks = TaskSource(ROWS, seed=1)
    executor = RolloutExecutor(workflow=ScoredWorkflow(rewards), tasks=tasks, sessions=sessions, config=config)
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


async def gather_seconds(setting: Setting, config: RolloutConfig, num_steps: int) -> float:
    """Run the same episodes, one gather per step."""
    session: Session = BareSession(setting, config.sampling)  # type: ignore[assignment]  # no more than is used
    workflow = ScoredWorkflow(setting.rewards)

    async def episode(number: int) -> Episode:
        trajectory = await workflow.arun_episode(session, ROWS[number % len(ROWS)])
        assert trajectory is not None
        return Episode(trajectories=(trajectory,), task_id=TaskId(str(number)), group_id=GroupId(str(number)))

    began = time.perf_counter()
    for _ in range(num_steps):
        await asyncio.gather(*(episode(n) for n in range(config.prompts_per_step * config.group_size)))
    return time.perf_counter() - began


async def compared(setting: Setting, *, quick: bool) -> tuple[frame.Figure, dict[str, Any]]:
    """Measure both in turns; return the figure and what it is made of. Any: json."""
    num_steps, repeats = (3, 2) if quick else (20, 7)
    config = RolloutConfig(
        prompts_per_step=32, group_size=8, max_staleness=2, sampling=SamplingParams(max_new_tokens=NUM_TOKENS)
    )
    num_episodes = num_steps * config.prompts_per_step * config.group_size
    seconds: dict[str, list[float]] = {"executor": [], "gather": []}
    sides: dict[str, Callable[[Setting, RolloutConfig, int], Coroutine[Any, Any, float]]] = {
        "executor": executor_seconds,
        "gather": gather_seconds,
    }
    for number in range(repeats + 1):
        for name, side in sides.items():
            took = await side(setting, config, num_steps)
            if number:
                seconds[name].append(took)
    timing = {name: frame.Timing.of(values) for name, values in seconds.items()}
    added = timing["executor"].median - timing["gather"].median
    return frame.Figure.of(seconds["gather"], seconds["executor"]), {
        "episodes_per_s": {name: num_episodes / each.median for name, each in timing.items()},
        "microseconds_added_per_episode": 1e6 * added / num_episodes,
        "timing": timing,
        "episodes": num_episodes,
        "tokens_per_episode": NUM_TOKENS,
    }


async def in_both(*, quick: bool) -> list[tuple[frame.Figure, dict[str, Any]]]:
    """Compare without and with what a run has around it. Any: json."""
    with as_controller():
        apart = await compared(Setting(InstantWorker()), quick=quick)
        async with in_a_run() as setting:
            return [apart, await compared(setting, quick=quick)]


def main() -> int:
    """Measure, and keep both."""
    options = frame.parser(__doc__).parse_args()
    frame.one_thread()
    found = frame.run(in_both(quick=options.quick))
    names = {"orchestration": "", "orchestration_whole": ", the engine in a worker, a reward in a process"}
    for (name, how), (figure, details) in zip(names.items(), found, strict=True):
        what = f"episodes/s of the executor / of asyncio.gather{how}"
        result = frame.Result(name=name, script="orchestration", figure=figure, what=what, details=details)
        frame.finish(result, quick=options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
