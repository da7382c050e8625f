"""What the sequences of a batch show: pictures, the tokens that stand for them, positions in three directions.

Knows: the media of a batch, and what makes them unfit for a model.
Does not know: the vision tower (`areal_proof.second.vision`), or the decoder.

Legend: N sequences, L padded length.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from areal_core.contract.batch import Batch
from areal_core.contract.data import IMAGE_GRID, IMAGE_TOKENS, PIXEL_VALUES
from areal_core.contract.errors import BatchError, CapabilityError
from areal_proof.second.vision import Picture, Vision, positions


@frozen(kw_only=True, eq=False)
class Shown:
    """Pictures of each sequence in order, and which of its tokens stand for them, bool [N, L]."""

    pictures: tuple[tuple[Picture, ...], ...]
    marks_NL: Tensor

    def positions(self) -> Tensor:
        """Return positions in time, height and width, int64 [N, 3, L]; padding goes on as text does."""
        rows = []
        for marks, pictures in zip(self.marks_NL.tolist(), self.pictures, strict=True):
            starts = [mark and not before for before, mark in zip([False, *marks], marks, strict=False)]
            once = [int(start) for start, mark in zip(starts, marks, strict=True) if start or not mark]
            rows.append(positions(once, 1, pictures))
        return torch.stack(rows).to(self.marks_NL.device)


def shown_of(batch: Batch, vision: Vision | None) -> Shown | None:
    """Return what a checked batch shows; None where nothing is."""
    if vision is None or not batch.media or not len(batch.media[PIXEL_VALUES].rows):
        return None
    patches, grids = batch.media[PIXEL_VALUES], batch.media[IMAGE_GRID]
    left = iter(torch.split(patches.rows, [height * width for _, height, width in grids.rows.tolist()]))
    pictures = [
        Picture(patches=next(left), rows=height // vision.merge, columns=width // vision.merge)
        for _, height, width in grids.rows.tolist()
    ]
    ends = grids.counts.cumsum(0).tolist()
    marks = pad_sequence(list(torch.split(batch.tokens[IMAGE_TOKENS], batch.lengths.tolist())), batch_first=True)
    return Shown(
        pictures=tuple(tuple(pictures[start:end]) for start, end in zip([0, *ends], ends, strict=False)), marks_NL=marks
    )


def check_shown(batch: Batch, vision: Vision | None) -> None:
    """Refuse what this model cannot have been shown.

    Raises:
        CapabilityError: the model is one of text.
        BatchError: media of another kind or size, or tokens that do not stand for them.
    """
    marked = IMAGE_TOKENS in batch.tokens and bool(batch.tokens[IMAGE_TOKENS].any())
    if vision is None:
        if batch.media:
            raise CapabilityError("a model of text is shown images", why="it has no vision tower", fix="train another")
        return
    if not batch.media and not marked:
        return
    problem = _problem(batch, vision)
    if problem:
        raise BatchError(
            f"the images of the batch do not fit: {problem}",
            why="patches, grids and the tokens that stand for them must agree, sequence by sequence",
            fix="prepare images with the processor of this model",
        )


def _problem(batch: Batch, vision: Vision) -> str:
    if set(batch.media) != {PIXEL_VALUES, IMAGE_GRID}:
        return f"media are {', '.join(sorted(batch.media)) or 'missing'}"
    if IMAGE_TOKENS not in batch.tokens or batch.tokens[IMAGE_TOKENS].dtype != torch.bool:
        return f"there is no bool column {IMAGE_TOKENS}"
    patches, grids = batch.media[PIXEL_VALUES], batch.media[IMAGE_GRID]
    width = vision.channels * vision.frames * vision.patch**2
    if patches.rows.dtype != torch.float32 or tuple(patches.rows.shape[1:]) != (width,):
        return f"patches are {patches.rows.dtype} of {list(patches.rows.shape[1:])} numbers, not float32 of {width}"
    if grids.rows.dtype != torch.int64 or tuple(grids.rows.shape[1:]) != (3,):
        return "grids are not int64 [images, 3]"
    if any(t != 1 or h < 1 or w < 1 or h % vision.merge or w % vision.merge for t, h, w in grids.rows.tolist()):
        return "a grid is not of whole tokens"
    parts = torch.split(grids.rows, grids.counts.tolist())
    marks = torch.split(batch.tokens[IMAGE_TOKENS], batch.lengths.tolist())
    for row, (part, mark) in enumerate(zip(parts, marks, strict=True)):
        sizes = part.prod(1).tolist()
        if sum(sizes) != int(patches.counts[row]):
            return f"sequence {row} has {int(patches.counts[row])} patches for grids of {sum(sizes)}"
        if _runs(mark.tolist()) != [size // vision.merge**2 for size in sizes]:
            return f"the tokens of sequence {row} do not stand for its images"
    return ""


def _runs(marks: list[bool]) -> list[int]:
    """Return the length of each run of True."""
    return [len(run) for run in "".join("x" if mark else " " for mark in marks).split()]
