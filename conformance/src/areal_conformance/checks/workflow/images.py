"""Images of a row: the policy is shown all of them, in order, and the trajectory carries what it was shown.

Knows: pictures, the tokens that stand for them, what a session was asked with.
Does not know: how a workflow reads a row.
"""

from __future__ import annotations

import asyncio
import functools
import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from areal_conformance.benches.workflow import ScriptedSession, WorkflowBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.contract.data import Episode

_SESSION = "workflow#areal_core.contract.workflow.Session"
_TRAJECTORY = "data#areal_core.contract.data.Trajectory"
SHOWN = ("images",)
_SINCE = (1, 2)
rule = partial(check, level=Level.SINGLE, law=1, spec=_SESSION, requires=SHOWN, since=_SINCE)


@functools.cache
def picture(seed: int) -> bytes:
    """Return a PNG file with a picture like no other of another number."""
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@rule("workflow.images.shown")
async def shown(bench: WorkflowBench) -> None:
    """The policy is shown every image of the row in the order of the row, the same picture twice too, and once each."""
    for numbers in ((1,), (2, 3), (5, 4, 6), (7, 8, 7)):
        images = [picture(number) for number in numbers]
        for row in bench.shown_rows(*images):
            session = bench.session()
            await bench.episode(session, row)
            _expect_shown(session, images)


@rule("workflow.images.carried", spec=_TRAJECTORY)
async def carried(bench: WorkflowBench) -> None:
    """Every trajectory carries the images its tokens were asked with, one for each token that stands for one."""
    for numbers in ((1,), (3, 2), (4, 5, 4)):
        images = [picture(number) for number in numbers]
        for row in bench.shown_rows(*images):
            session = bench.session()
            _expect_carried(await bench.episode(session, row), session)


@rule("workflow.images.own")
async def own(bench: WorkflowBench) -> None:
    """Rows that differ in their image alone are shown their own, one after another and at once; one without, none."""
    rows = [bench.shown_rows(picture(number))[0] for number in range(1, 7)]
    for number, row in enumerate(rows, start=1):
        session = bench.session()
        await bench.episode(session, row)
        _expect_shown(session, [picture(number)])
    bare = bench.session()
    await bench.episode(bare)
    _expect_shown(bare, [])
    sessions = [bench.session() for _ in rows]
    work = asyncio.gather(*(bench.episode(one, row) for one, row in zip(sessions, rows, strict=True)))
    episodes = await bench.soon(work, "episodes of rows with images")
    for number, (episode, session) in enumerate(zip(episodes, sessions, strict=True), start=1):
        _expect_shown(session, [picture(number)])
        _expect_carried(episode, session)


@rule("workflow.images.not_dropped", law=5)
async def not_dropped(bench: WorkflowBench) -> None:
    """More images than places, fewer, or a model that takes none: the episode fails, and no image is left out."""
    (row, *_), (two, *_) = bench.shown_rows(picture(1)), bench.shown_rows(picture(1), picture(2))
    cases = {
        "two images for one place": (bench.session(), {**row, "images": two["images"]}),
        "one image for two places": (bench.session(), {**two, "images": row["images"]}),
        "an image for a model that takes none": (bench.session(image_token_id=None), row),
    }
    for what, (session, given) in cases.items():
        await bench.failure(Exception, session, what, given)


@rule("workflow.images.aside", law=9, spec="workflow#images")
async def aside(bench: WorkflowBench) -> None:
    """No image is decoded in the controller's event loop, where every other episode would stand still meanwhile."""
    clear = io.BytesIO()
    Image.open(io.BytesIO(picture(3))).convert("RGBA").save(clear, "PNG")
    workflow = bench.fresh()
    for row in (row for image in (picture(2), clear.getvalue()) for row in bench.shown_rows(image)):
        session = bench.session()
        with _not_here(ImageFile.ImageFile, "load", "an image is decoded in the event loop"):
            await bench.soon(workflow.arun_episode(session, row), "an episode of a row with an image")


@contextmanager
def _not_here(owner: type, name: str, what: str) -> Iterator[None]:
    """Raise where a method is called in this thread."""
    here, method = threading.get_ident(), getattr(owner, name)

    def guarded(*given: Any, **named: Any) -> Any:  # Any: as the method takes them
        if threading.get_ident() == here:
            raise Violation(what)
        return method(*given, **named)

    setattr(owner, name, guarded)
    try:
        yield
    finally:
        setattr(owner, name, method)


@check("workflow.images.text_model", level=Level.SINGLE, law=1, spec=_SESSION, since=_SINCE)
async def text_model(bench: WorkflowBench) -> None:
    """A model that takes no images is asked with the same tokens for a row without any as one that does."""
    for row in bench.rows:
        seeing, blind = bench.session(), bench.session(image_token_id=None)
        await bench.episode(seeing, row)
        await bench.episode(blind, row)
        asked = [[one.input_ids for one in session.asked] for session in (seeing, blind)]
        expect(asked[0] == asked[1], f"asked with {asked[1]} where the model takes no images, else with {asked[0]}")


@rule("workflow.images.later_turns", requires=("images", "multi_turn"))
async def later_turns(bench: WorkflowBench) -> None:
    """A later turn is shown the images of the earlier ones again, in their order."""
    images = [picture(1), picture(2)]
    for row in bench.shown_rows(*images):
        session = bench.session()
        episode = await bench.episode(session, row)
        expect(len(session.asked) > 1, f"`multi_turn` is claimed and the policy was asked {len(session.asked)} times")
        for turn, (before, after) in enumerate(zip(session.asked, session.asked[1:], strict=False), start=1):
            again = after.images[: len(before.images)] == before.images
            expect(again, f"turn {turn} is shown {len(after.images)} images, not first the {len(before.images)} before")
        _expect_carried(episode, session)


def _expect_shown(session: ScriptedSession, images: Sequence[bytes]) -> None:
    """Expect the first turn to be shown these pictures; other files of the same picture are the same."""
    seen = [_looks(image) for image in session.asked[0].images]
    wanted = [_looks(image) for image in images]
    expect(len(seen) == len(wanted), f"a row of {len(wanted)} images was shown with {len(seen)}")
    odd = [number for number, (one, other) in enumerate(zip(seen, wanted, strict=True)) if one != other]
    expect(not odd, f"images {odd} of {len(wanted)} that the policy was shown are others than the row's")


def _looks(file: bytes) -> tuple[object, bytes]:
    if not isinstance(file, bytes):
        raise Violation(f"an image was given as {type(file).__name__}, not as the bytes of a file")
    image = Image.open(io.BytesIO(file)).convert("RGB")
    return image.size, image.tobytes()


def _expect_carried(episode: Episode, session: ScriptedSession) -> None:
    """Expect every trajectory to hold the images of the longest request it begins with."""
    for trajectory in episode.trajectories:
        ids = trajectory.input_ids.tolist()
        fitting = [asked for asked in session.asked if ids[: len(asked.input_ids)] == list(asked.input_ids)]
        expect(bool(fitting), "a trajectory begins with no prompt the policy was asked with")
        last = max(fitting, key=lambda asked: len(asked.input_ids))
        carried, given = trajectory.images, last.images
        told = f"a trajectory carries {len(carried)} images, its tokens were asked with {len(given)}"
        alike = sorted(carried) == sorted(given)
        expect(carried == given, f"{told}" + (": the same ones in another order" if alike else ""))
        stands = (trajectory.input_ids == session.image_token_id) & ~trajectory.loss_mask
        count = int(stands.sum())
        expect(count == len(trajectory.images), f"{count} tokens stand for the {len(trajectory.images)} images carried")
