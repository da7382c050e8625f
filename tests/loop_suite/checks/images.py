"""Images of a request: sent again whenever it is, and made ready before an episode is handed over.

Knows: requests as scripted engines saw them, and who called what is to prepare a trajectory.
Does not know: pictures; bytes stand for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.errors import BatchError, EpisodeFailed
from areal_core.contract.inference import IMAGES, PauseMode
from areal_core.contract.trajectory import from_generation

if TYPE_CHECKING:
    from areal_core.contract.data import Trajectory
    from areal_core.contract.workflow import Session

    from ..bench import LoopBench

_SINCE = (1, 2)


class _Showing:
    """A workflow that shows a row's images once."""

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        """Generate from `input_ids` and `images`. Any: as in the contract."""
        made = await engine.generate(data["input_ids"], images=data["images"])
        return from_generation(data["input_ids"], made, 1.0, images=data["images"])


def _rows(count: int) -> list[dict[str, Any]]:
    return [{"input_ids": [3 + n, 4], "images": [b"image %d" % n, b"another %d" % n]} for n in range(count)]


@check("loop.images.again", level=Level.LOOP, law=1, spec="infer#images", since=_SINCE)
async def again(bench: LoopBench) -> None:
    """A request carries the images it was given, and carries them again wherever it goes on after an interruption."""
    async with bench.rollouts(
        prompts=1, group=1, staleness=3, workflow=_Showing(), rows=_rows(1), length=lambda _request: 12
    ) as side:
        waiting = asyncio.ensure_future(side.executor.next_batch())
        engine = side.engines[0]
        for _ in range(2):
            await side.clock.advance(3.0)
            await engine.pause(PauseMode.ABORT)
            await engine.resume()
        (group,) = await side.drive(waiting)
        wanted = tuple(_rows(1)[0]["images"])
        first = [request for request in engine.requests if request.num_prior == 0]
        later = [request for request in engine.requests if request.num_prior]
        expect(bool(first) and len(later) >= 2, f"of {len(engine.requests)} requests {len(later)} go on after a pause")
        for request in engine.requests:
            seen = request.extras.get(IMAGES, ())
            what = f"a request with {request.num_prior} earlier tokens"
            expect(seen == wanted, f"{what} carries {len(seen)} images, not the {len(wanted)} it was given")
        carried = group.episodes[0].trajectories[0].images
        expect(carried == wanted, f"the trajectory carries {len(carried)} images, its tokens were asked with 2")


@check("loop.images.prepared", level=Level.LOOP, law=1, spec="data#areal_core.contract.data.Trajectory", since=_SINCE)
async def prepared(bench: LoopBench) -> None:
    """Each trajectory is prepared once, beside the event loop, before it is handed over; one that cannot be, fails."""
    loop, threads = threading.get_ident(), list[int]()

    def prepare(trajectory: Trajectory) -> Trajectory:
        threads.append(threading.get_ident())
        return attrs.evolve(trajectory, images=(), reward=trajectory.reward + float(len(trajectory.images)))

    options: dict[str, Any] = {"workflow": _Showing(), "length": lambda _request: 4}
    async with bench.rollouts(prompts=2, group=2, staleness=0, rows=_rows(8), prepare=prepare, **options) as side:
        groups = await _soon(side)
        trajectories = [t for group in groups for episode in group.episodes for t in episode.trajectories]
        expect(len(trajectories) == 4, f"{len(trajectories)} trajectories of two groups of two were handed over")
        left = sum(bool(trajectory.images) or trajectory.reward != 3.0 for trajectory in trajectories)
        expect(not left, f"{left} of 4 trajectories were handed over as the workflow made them")
        expect(len(threads) == 4, f"4 trajectories were handed over, prepared was {len(threads)} times")
        expect(loop not in threads, "a trajectory was prepared in the event loop: everything else stood still")

    def refuse(trajectory: Trajectory) -> Trajectory:
        raise BatchError("an image cannot be read", why="it is torn")

    async with bench.rollouts(prompts=1, group=1, staleness=0, rows=_rows(1), prepare=refuse, **options) as side:
        try:
            await _soon(side)
        except EpisodeFailed as error:
            expect("it is torn" in str(error) and "train/0/0" in str(error), f"the failure tells only: {error}")
        else:
            expect(False, "an episode that could not be prepared was handed over")


async def _soon(side: Any) -> Any:  # Any: a RolloutBench, and its groups
    """Return the next batch; what is prepared in a thread is waited for in real time."""
    waiting = asyncio.ensure_future(side.executor.next_batch())
    try:
        async with asyncio.timeout(30.0):
            while not waiting.done():
                await side.clock.settle()
                deadline = side.clock.next_deadline
                if deadline is None:
                    await asyncio.wait((waiting,), timeout=0.005)
                else:
                    await side.clock.advance(deadline - side.clock.now())
            return waiting.result()
    finally:
        waiting.cancel()
