"""How a run is put together: what its configuration says arrives, and a start after another goes on from one state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.one_process import OneProcess, resume_here, settle_here, train_here

from areal_conformance.benches.pair_workers import InProcessWorker
from areal_core.contract.errors import WorkerDied
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.contract.scheduler import Job, WorkerState, WorkerStatus
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.weight_sync import WeightSync, WeightUpdate
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Filter, Reader
from areal_tasks.tiny import make_spell_model

pytest.importorskip("areal_reference")

SYNCHRONOUS = ("rollout.max_staleness=0", "deterministic=true")
SUMS = ("wall_s", "tokens_trained", "tokens_generated", "train_busy_s", "infer_busy_s", "infer_wall_s")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's architecture before any training."""
    return make_spell_model(tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every worker in this process."""
    settle_here(monkeypatch)


def records(folder: Path) -> list[dict[str, Any]]:  # Any: JSON
    return list(read_lines(folder / "metrics.jsonl"))


def test_what_a_run_was_told_arrives_where_it_counts(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temperature at both ends, greedy evaluation, the reference and its penalty, and who accepts groups."""
    asked: list[GenerationRequest] = []
    generate = InferencePool.generate

    async def noted(pool: InferencePool, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        asked.append(request)
        return await generate(pool, request, affinity=affinity)

    monkeypatch.setattr(InferencePool, "generate", noted)
    train_here(
        tmp_path / "run",
        model,
        *SYNCHRONOUS,
        *("steps=3", "rollout.sampling.temperature=0.5", "rollout.accept=mixed", "evaluation.max_prompts=2"),
        *("reference.backend=reference:d1", "algorithm.kl_loss.coefficient=0.1"),
        "evaluation.data={name: spell, options: {split: held, max_word_len: 10, size: 4096}}",
    )

    made = records(tmp_path / "run")
    evaluated = {request.sampling.temperature for request in asked if request.request_id.startswith("eval/")}
    trained = {request.sampling.temperature for request in asked if not request.request_id.startswith("eval/")}
    assert (evaluated, trained) == ({0.0}, {0.5})
    assert max(record["train/engine_gap"] for record in made) < 1e-4, "the trainer computes what the engine drew from"
    assert made[0]["train/reference_kl"] == pytest.approx(0.0, abs=1e-5) and made[-1]["train/reference_kl"] > 1e-4
    assert made[-1]["filtered"] > 0


def test_a_resumed_run_serves_what_it_trained_and_adds_up(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the very first step too: weights before any request, the line that was not written, and no sum less."""
    folder = tmp_path / "run"
    train_here(folder, model, *SYNCHRONOUS, "steps=1", "checkpoint.every_steps=1", "episodes.keep=0")
    (before,) = records(folder)
    (folder / "metrics.jsonl").write_text("")
    happened: list[str] = []
    generate, update = InferencePool.generate, WeightSync.update

    async def asked(pool: InferencePool, *request: Any, **options: Any) -> Generation:
        happened.append("request")
        return await generate(pool, *request, **options)

    async def updated(sync: WeightSync, version: int) -> WeightUpdate:
        done = await update(sync, version)
        happened.append(f"version {version}")
        return done

    monkeypatch.setattr(InferencePool, "generate", asked)
    monkeypatch.setattr(WeightSync, "update", updated)
    resume_here(folder, "steps=2")

    first, second = records(folder)
    assert happened[:2] == ["version 1", "request"]
    assert (first["step"], second["step"]) == (1, 2) and first["weights"] == before["weights"]
    assert second["staleness_max"] == 0
    assert all(first[name] <= second[name] for name in SUMS)


class _Mortal(OneProcess):
    """The training worker is lost in its third step, once; silent, or with an error."""

    silent = False
    lives = 1

    async def submit(self, job: Job) -> Sequence[InProcessWorker]:
        workers = await super().submit(job)
        if job.role == "actor" and self.lives:
            steps = iter(range(1, 4))
            call = workers[0].call

            async def until_lost(method: str, *args: Any, timeout_s: float) -> Any:
                if method == "train_step" and next(steps) == 3:
                    type(self).lives = 0
                    self.gone = True
                    if self.silent:
                        await asyncio.Event().wait()
                    raise WorkerDied("actor/0 died", why="it was killed")
                return await call(method, *args, timeout_s=timeout_s)

            workers[0].call = until_lost  # type: ignore[method-assign]
        elif job.role == "actor":
            self.gone = False
        return workers

    def poll(self, role: str) -> Sequence[WorkerStatus]:
        if role == "actor" and getattr(self, "gone", False):
            return [WorkerStatus(id="actor/0", role=role, rank=0, state=WorkerState.ENDED, exit_code=-9)]
        return super().poll(role)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> type[_Mortal]:
    """Lose the trainer of the runs of a test, in the third step."""
    kind = type("Mortal", (_Mortal,), {})
    monkeypatch.setattr("areal_core.loop.run.make_scheduler", lambda config, registry, logs: kind())
    return kind


def test_trainers_that_start_again_go_on_where_their_weights_are(
    tmp_path: Path, model: Path, mortal: type[_Mortal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the prompts of the checkpoint, each once, and a fleet that was kept and is given its version again."""
    folder = tmp_path / "run"
    sent: list[int] = []
    update = WeightSync.update

    async def noted(sync: WeightSync, version: int) -> WeightUpdate:
        sent.append(version)
        return await update(sync, version)

    monkeypatch.setattr(WeightSync, "update", noted)

    outcome = train_here(folder, model, "rollout.max_staleness=0", "scheduler.restarts=1")

    with Reader(folder) as reader:
        trained = Counter((each["task_index"], each["member"]) for each in reader.facts(Filter(fate="trained")))
    (again,) = [event for event in read_lines(folder / "events.jsonl") if event["kind"] == "run_restarted"]
    assert outcome.finished and not mortal.lives
    assert (again["version"], again["kept"]) == (2, ["rollout/0"])
    assert sent == [1, 2, 2, 3, 4]
    assert [record["step"] for record in records(folder)] == [1, 2, 3, 4]
    assert trained == Counter((task, member) for task in range(8) for member in range(2))


def test_a_trainer_that_ends_without_an_answer_is_noticed(tmp_path: Path, model: Path, mortal: type[_Mortal]) -> None:
    """Nobody waits for its step: the run ends by its name."""
    mortal.silent = True

    with pytest.raises(WorkerDied, match="actor/0"):
        train_here(tmp_path / "run", model, "scheduler.restarts=0")
