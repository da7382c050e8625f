"""Images of a trajectory become media, its placeholders as many tokens as they take, and nothing else moves."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from areal_core.contract.batch import Batch
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES, Episode, StopReason, Trajectory
from areal_core.contract.errors import BatchError, ModelError
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.train import ROUTED_EXPERTS
from areal_torch.prepare_images import ImagePreparer
from areal_torch.testing.models import IMAGE_SIDE, make_tiny_model

PLACEHOLDER = 66
"""Of the tiny model: the third id behind its vocabulary of 64."""
SIZES = ((1, 1), (2, 1), (1, 3), (2, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes images."""
    return make_tiny_model(tmp_path_factory.mktemp("seeing") / "model", kind="qwen2_5_vl")


@pytest.fixture(scope="module")
def preparer(folder: Path) -> ImagePreparer:
    made = ImagePreparer.of(folder)
    assert made is not None
    return made


def picture(columns: int, rows: int, colour: int = 0) -> bytes:
    """Return a PNG file of so many tokens in width and height."""
    image = Image.new("RGB", (IMAGE_SIDE * columns, IMAGE_SIDE * rows), (40 * colour % 256, 90, 200))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def trajectory(parts: Sequence[int | bytes | tuple[int, ...]], **fields: Any) -> Trajectory:
    """Return one of prompt tokens, images with what stands around them, and generated tokens (a tuple).

    Every generated token has a log-prob and a version of its own. Any: fields of Trajectory to set.
    """
    ids: list[int] = []
    mask: list[bool] = []
    for part in parts:
        new = [part] if isinstance(part, int) else [64, PLACEHOLDER, 65] if isinstance(part, bytes) else list(part)
        ids += new
        mask += [isinstance(part, tuple)] * len(new)
    on, place = torch.tensor(mask, dtype=torch.bool), torch.arange(len(ids))
    given: dict[str, Any] = {
        "input_ids": torch.tensor(ids, dtype=torch.int64),
        "loss_mask": on,
        "logprobs": torch.where(on, -1.0 - place, 0.0),
        "versions": torch.where(on, place, -1).to(torch.int32),
        "reward": 0.5,
        "stop_reason": StopReason.STOP,
        "token_extras": {ROUTED_EXPERTS: torch.where(on[:, None], place[:, None], -1).to(torch.int32)},
        "images": [part for part in parts if isinstance(part, bytes)],
    }
    return Trajectory(**{**given, **fields})


images = st.tuples(st.sampled_from(SIZES), st.integers(0, 3)).map(lambda one: picture(*one[0], one[1]))
prompts = st.integers(2, 63)
outputs = st.lists(st.sampled_from([3, 5, 9, PLACEHOLDER]), min_size=1, max_size=4).map(tuple)


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.one_of(prompts, images, outputs), min_size=1, max_size=8))
def test_placeholders_grow_and_everything_else_stays_aligned(preparer: ImagePreparer, parts: list[Any]) -> None:
    """Without the tokens that were added it is the trajectory it was; each run of added ones is its image's size.

    Also placeholders that the policy generated are there once, as they were, and are no image.
    """
    before = trajectory(parts)
    made = preparer.prepare(before)
    is_image = made.token_extras[IMAGE_TOKENS]
    runs = torch.unique_consecutive(is_image, return_counts=True)
    sizes = [count for on, count in zip(*(column.tolist() for column in runs), strict=True) if on]
    wanted = [w * h // IMAGE_SIDE**2 for w, h in (Image.open(io.BytesIO(image)).size for image in before.images)]
    first = torch.ones_like(is_image)
    first[1:] = ~(is_image[1:] & is_image[:-1])

    assert sizes == wanted
    for name in ("input_ids", "loss_mask", "logprobs", "versions"):
        assert torch.equal(getattr(made, name)[first], getattr(before, name)), name
    assert torch.equal(made.token_extras[ROUTED_EXPERTS][first], before.token_extras[ROUTED_EXPERTS])
    assert set(made.input_ids[is_image].tolist()) <= {PLACEHOLDER}
    assert not (made.loss_mask & is_image).any() and not made.logprobs[is_image].any()
    assert bool((made.versions[is_image] == -1).all() & (made.token_extras[ROUTED_EXPERTS][is_image] == -1).all())
    assert (made.images, made.reward, made.stop_reason) == ((), 0.5, StopReason.STOP)
    if before.images:
        grid, values = made.media[IMAGE_GRID], made.media[PIXEL_VALUES]
        assert (grid.dtype, values.dtype) == (torch.int64, torch.float32)
        assert (grid.prod(dim=1) // 4).tolist() == wanted and len(values) == int(grid.prod(dim=1).sum())
    else:
        assert made.media == {}


def test_media_are_what_the_models_own_processor_gives(preparer: ImagePreparer, folder: Path) -> None:
    """Image by image, in their order, and the same as for all at once."""
    from transformers import AutoImageProcessor

    files = [picture(2, 1, 1), picture(1, 3, 2), picture(1, 1, 3)]
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    wanted = processor(images=[Image.open(io.BytesIO(file)) for file in files], return_tensors="pt")

    made = preparer.prepare(trajectory([*files, (5,)])).media

    assert torch.equal(made[PIXEL_VALUES], wanted[PIXEL_VALUES])
    assert made[IMAGE_GRID].tolist() == wanted[IMAGE_GRID].tolist() == [[1, 2, 4], [1, 6, 2], [1, 2, 2]]


def test_sequences_with_and_without_images_pack_together(preparer: ImagePreparer) -> None:
    """The column that marks images is on all of them; one prepared before stays what it is."""
    made = [preparer.prepare(one) for one in (trajectory([picture(2, 2), (5,)]), trajectory([7, (5, 9)]))]
    episode = Episode(trajectories=[preparer.prepare(one) for one in made], task_id=TaskId("t"), group_id=GroupId("t"))

    batch = Batch.pack([episode])

    assert batch.lengths.tolist() == [7, 3]
    assert batch.tokens[IMAGE_TOKENS].tolist() == [False, *[True] * 4, False, False, *[False] * 3]
    assert batch.media[PIXEL_VALUES].counts.tolist() == [16, 0]


def test_members_of_a_group_share_the_patches_of_their_image(folder: Path) -> None:
    """Prepared at once in several threads it is processed once, and held once."""
    preparer = ImagePreparer.of(folder)
    assert preparer is not None
    calls: list[int] = []
    preparer._processor = _Counting(preparer._processor, calls)

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(preparer.prepare, [trajectory([picture(2, 2), (5,)]) for _ in range(8)]))

    assert len(calls) == 1
    assert len({one.media[PIXEL_VALUES].data_ptr() for one in made}) == 1


def test_images_that_begin_alike_are_told_apart(preparer: ImagePreparer) -> None:
    """Screenshots whose upper part is the same, in files of more than 64 KiB."""
    screens = [_screen(last) for last in (10, 200)]
    same = next(place for place, pair in enumerate(zip(*screens, strict=False)) if pair[0] != pair[1])
    assert same > 1 << 16

    one, other = (preparer.prepare(trajectory([screen, (5,)])).media[PIXEL_VALUES] for screen in screens)
    both = preparer.prepare(trajectory([*screens, (5,)])).media[PIXEL_VALUES]

    assert not torch.equal(one, other)
    assert torch.equal(both, torch.cat([one, other]))


def _screen(last: int) -> bytes:
    """Return a PNG file of noise whose last row of patches has one colour."""
    side = IMAGE_SIDE * 16
    rows = torch.randint(0, 256, (side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    rows[-IMAGE_SIDE:] = last
    stream = io.BytesIO()
    Image.frombytes("RGB", (side, side), rows.numpy().tobytes()).save(stream, "PNG")
    return stream.getvalue()


class _Counting:
    def __init__(self, whole: Any, calls: list[int]) -> None:
        self.merge_size, self._whole, self._calls = whole.merge_size, whole, calls

    def __call__(self, **arguments: Any) -> Any:
        self._calls.append(1)
        return self._whole(**arguments)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: trajectory([picture(1, 1), (5,)], images=()), r"0 images for 1 placeholders(.|\n)*token 66"),
        (lambda: trajectory([7, (5,)], images=[picture(1, 1)]), "1 images for 0 placeholders"),
        (lambda: trajectory([7, (PLACEHOLDER,)], images=[picture(1, 1)]), "1 images for 0 placeholders"),
        (
            lambda: trajectory([PLACEHOLDER, PLACEHOLDER, (5,)], images=[picture(1, 1)] * 2),
            r"adjacent(.|\n)*vision_start",
        ),
        (lambda: trajectory([b"no image", (5,)]), "image 0 of a trajectory cannot be read"),
        (lambda: trajectory([picture(1, 1), picture(1, 1)[:-30], (5,)]), "image 1 of a trajectory cannot be read"),
    ],
)
def test_what_cannot_be_prepared_is_refused(preparer: ImagePreparer, made: Any, message: str) -> None:
    """Counts that do not match, images nobody could tell apart, files that are none."""
    with pytest.raises(BatchError, match=message):
        preparer.prepare(made())


def test_a_trajectory_too_long_with_its_images_is_refused_before_it_is_trained_on(folder: Path) -> None:
    """Six tokens become fourteen; the message has both numbers, and what to change."""
    exact, less = (ImagePreparer.of(folder, max_tokens=limit) for limit in (14, 13))
    assert exact is not None and less is not None
    long = trajectory([7, picture(3, 3), 9, (5,)])

    assert len(exact.prepare(long)) == 14
    with pytest.raises(BatchError, match=r"of 6 tokens has 14 with its 1 images, the limit is 13(.|\n)*microbatch"):
        less.prepare(long)


def test_a_model_of_text_alone_needs_no_preparer(tmp_path: Path) -> None:
    """Its trajectories are trained on as they are."""
    assert ImagePreparer.of(make_tiny_model(tmp_path / "text", layers=1)) is None


def test_a_processor_that_does_not_load_is_named(folder: Path, tmp_path: Path) -> None:
    """Code in a model folder is never run; a class nobody has is named."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).symlink_to(file)
    (copy / "preprocessor_config.json").unlink()
    config = {"image_processor_type": "Mine", "auto_map": {"AutoImageProcessor": "mine.Mine"}}
    (copy / "preprocessor_config.json").write_text(json.dumps(config))
    (copy / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Mine: ...\n")

    with pytest.raises(ModelError, match=r"image processor of .* cannot be loaded"):
        ImagePreparer.of(copy)
    assert not (tmp_path / "ran").exists()


def test_preparing_changes_nothing_it_was_given(preparer: ImagePreparer) -> None:
    """Columns may be shared with others."""
    before = trajectory([7, picture(2, 2), (5, 9)])
    copy = evolve(before, input_ids=before.input_ids.clone(), logprobs=before.logprobs.clone())
    preparer.prepare(before)

    assert torch.equal(before.input_ids, copy.input_ids) and torch.equal(before.logprobs, copy.logprobs)
    assert len(before.images) == 1
