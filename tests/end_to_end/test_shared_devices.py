"""`placement: shared` in processes of its own: the same policy bit for bit, memory given back, and every way to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from attrs import define, field

from areal_torch.testing.models import make_tiny_model

from .live_run import command, live_run, trained_tasks

pytestmark = pytest.mark.slow
SHARED = "placement=shared"


@define
class Resident:
    """Memory of two processes over time: (actor, rollout) in bytes, some hundred times a second."""

    seen: list[tuple[int, int]] = field(factory=list)

    @contextmanager
    def watched(self, *processes: psutil.Process) -> Iterator[None]:
        """Look until the block is left."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.003):
                try:
                    actor, rollout = (process.memory_info().rss for process in processes)
                except psutil.Error:
                    return
                self.seen.append((actor, rollout))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def freed(self) -> tuple[int, int]:
        """Return how much less each has at its least than at its most."""
        actor, rollout = (sorted(column) for column in zip(*self.seen, strict=True))
        return actor[-1] - actor[0], rollout[-1] - rollout[0]

    @property
    def spared(self) -> int:
        """Return how much less both have together at their most than each by itself."""
        actor, rollout = (max(column) for column in zip(*self.seen, strict=True))
        return actor + rollout - max(sum(pair) for pair in self.seen)


def test_the_side_that_sleeps_gives_its_memory_back(tmp_path: Path) -> None:
    """The generator its weights, the trainer weights, gradients and moments; never are all of them there at once."""
    model = make_tiny_model(tmp_path / "model", hidden=384, layers=8, heads=6, max_position=128)
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    folder, resident = tmp_path / "run", Resident()
    sizes = (
        "rollout.prompts_per_step=2",
        "rollout.group_size=2",
        "evaluation.every_steps=0",
        "evaluation.before=false",
    )
    with live_run(command(folder, model, "steps=4", SHARED, "actor.backend=reference:d1", *sizes), folder) as run:
        run.wait_for_step(1)
        with resident.watched(run.worker("actor"), run.worker("rollout")):
            run.wait_for_step(4)
        code, output = run.wait()

    assert code == 0, output
    actor, rollout = resident.freed
    assert actor > 2.5 * weights
    assert rollout > 0.8 * weights
    assert resident.spared > 0.7 * weights
    turns = {key for key in run.steps()[-1] if key.startswith("turn")}
    assert turns == {"turn_s", "turn/sleep_s", "turn/onload_s", "turn/offload_s", "turn/wake_s"}


EXACT = (
    *("steps=4", "rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.options.deterministic=true"),
    *("actor.backend=reference:d1", "evaluation.every_steps=0", "rollout.reward.options.exact=false"),
)


def test_turns_change_no_bit_of_the_policy_interrupted_or_not(tmp_path: Path, model: Path) -> None:
    """Every step's weights are those of max_staleness=0 on devices of their own, also after Ctrl-C and a resume."""
    folders = [tmp_path / "separate", tmp_path / "shared"]
    with live_run(command(folders[0], model, *EXACT, "rollout.max_staleness=0"), folders[0]) as separate:
        code, output = separate.wait()
        assert code == 0, output
    words = command(folders[1], model, *EXACT, SHARED)
    with live_run(words, folders[1]) as shared:
        shared.wait_for_step(2)
        shared.send(signal.SIGINT)
        code, output = shared.wait()
        assert code in (0, 130), output
        assert shared.survivors() == []
    with live_run([*words[:4], "--resume", str(folders[1])], folders[1]) as resumed:
        code, output = resumed.wait()
        assert code == 0, output

    assert [step["weights"] for step in resumed.steps()] == [step["weights"] for step in separate.steps()]
    assert [step["reward"] for step in resumed.steps()] == [step["reward"] for step in separate.steps()]
    assert resumed.summary()["max_staleness_seen"] == 0


def test_lost_workers_are_made_good_and_nothing_is_trained_twice(tmp_path: Path, model: Path) -> None:
    """A generator is replaced in the fleet's turn; without its trainer the run starts again from its last state."""
    folder = tmp_path / "run"
    saving = ("checkpoint.every_steps=1", "evaluation.every_steps=0", "evaluation.before=false")
    small = ("rollout.prompts_per_step=4", "rollout.group_size=4")
    words = command(folder, model, "steps=8", SHARED, "actor.backend=reference:d1", *saving, *small)
    with live_run(words, folder) as run:
        run.wait_for_step(1)
        run.worker("rollout").kill()
        run.wait_for_event("replica_joined")
        run.wait_for_event("checkpoint")
        run.worker("actor").kill()
        code, output = run.watch()

        assert code == 0, output
        assert "restart 1 of 2" in output
        assert run.survivors() == []
        assert run.left_in_shared_memory() == []
    tasks = trained_tasks(folder, 8)
    assert len(tasks) == 8 * 4
    assert len(set(tasks)) == len(tasks)
