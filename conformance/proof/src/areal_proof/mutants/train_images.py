"""Trainers that see wrongly: nothing, another's images, the wrong way round, or without learning to.

Knows: where images pass through the second trainer.
Does not know: checks, beyond the names of those that must find each defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.data import PIXEL_VALUES
from areal_core.contract.train import TrainSpec
from areal_core.plugins.claims import not_yet
from areal_proof.mutants.rows import breaking, given, gives, put, row, then, within
from areal_proof.second.train import columns as columns_module
from areal_proof.second.train import network
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.shown import Shown
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch import images as images_module
from areal_torch.attention import Packing
from areal_torch.images import VisionTower

ENGINE = "train/second"
breaks = breaking(ENGINE, SecondTrainEngine)
breaks_reference = breaking("train/reference", ReferenceTrainEngine)


class Looks(network.Network):
    """A network that is shown something else."""

    def hidden(self, ids_NL: Tensor, routes_NLEK: Tensor | None = None, shown: Shown | None = None) -> Tensor:
        """Change what is shown first."""
        return network.Network.hidden(self, ids_NL, routes_NLEK, self.looked(ids_NL, shown))

    def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
        """Return what is seen."""
        return shown


class OtherNetwork(SecondTrainEngine):
    """The second trainer with another network. No defect by itself."""

    Network: ClassVar[type[network.Network]]

    def build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super().build(spec, ranks, device, dtype)
        whole = here.columns.network
        fields = {field.name: getattr(whole, field.name) for field in attrs.fields(network.Network)}
        return attrs.evolve(here, columns=attrs.evolve(here.columns, network=self.Network(**fields)))


breaks_looking = breaking(ENGINE, OtherNetwork, part=("Network", Looks))


@breaks_looking("looked", "train.images.scores", "train.images.with_sequences")
def ImagesOfTheFirstSequences(shown: Shown | None) -> Any:
    """Gives the sequences of a micro-batch their images from the last to the first."""
    if shown is None:
        return None
    patches = torch.cat([picture.patches for row in shown.pictures for picture in row]).flip(0)
    left = iter(torch.split(patches, [len(picture.patches) for row in shown.pictures for picture in row]))
    pictures = tuple(tuple(attrs.evolve(picture, patches=next(left)) for picture in row) for row in shown.pictures)
    return attrs.evolve(shown, pictures=pictures)


@attrs.frozen(kw_only=True, eq=False)
class _InOneLine(Shown):
    def positions(self) -> Tensor:
        """Count."""
        num_rows, length = self.marks_NL.shape
        return torch.arange(length).expand(num_rows, 3, -1)


@breaks_looking("looked", "train.images.said")
def PlaceholdersLookedFor(self: Looks, ids_NL: Tensor, shown: Shown | None) -> Any:
    """Finds the tokens of images by their id, not by their mark: one the policy said moves all after it."""
    vision = self.architecture.vision
    if shown is None or vision is None:
        return shown
    return attrs.evolve(shown, marks_NL=ids_NL == vision.image_token)


LOOKING_ROWS = breaks_looking.rows(
    row("ImagesUnseen", "Makes room for images and takes their tokens for words.", "train.images.scores",
        "train.images.places", "train.images.gradient", looked=lambda: None),
    row("ImagesInOneLine", "Counts the tokens of an image one after another, as those of a text.",
        "train.images.scores", "train.images.places",
        looked=lambda shown: None if shown is None else _InOneLine(pictures=shown.pictures, marks_NL=shown.marks_NL)),
    row("ImagesTurned", "Takes the height of an image for its width.", "train.images.places", "train.images.scores",
        looked=lambda shown: None if shown is None else attrs.evolve(shown,
            pictures=tuple(tuple(attrs.evolve(picture, rows=picture.columns, columns=picture.rows)
            for picture in row) for row in shown.pictures))),
    row("VisionFrozen", "Sees, and does not learn to see better.", "train.images.gradient",
        seen=lambda original, shown: original(shown).detach()),
)  # fmt: skip


ROWS = breaks.rows(
    row("OtherRanksSeeNothing", "Looks at images on rank 0 only.", "train.images.ranks", base=OtherNetwork,
        part=("Network", Looks), ranks=2, looked=lambda self, shown: shown if self.ranks.rank == 0 else None),
    row("ImagesNotGivenBack", "Returns a scored batch without what its sequences showed.", "train.images.kept",
        forward=gives(media=dict)),
    row("ImagesWornByUse", "Normalises patches in the batch it was given.", "train.images.kept",
        forward=then(lambda batch: batch.media[PIXEL_VALUES].rows.mul_(0.5) if PIXEL_VALUES in batch.media else None)),
    row("ProcessorLeftBehind", "Writes a folder that nobody can show an image to.", "train.images.folder",
        save_weights=then(lambda path: (path / "preprocessor_config.json").unlink(missing_ok=True))),
    row("VisionNotSent", "Sends and writes the words of a model that sees.", "train.images.folder",
        "train.images.gradient",
        weights_in_use=lambda original: {name: each for name, each in original().items()
            if not name.startswith("visual.")}),
)  # fmt: skip


_UNCHECKED = within(lambda: put(columns_module, check_shown=lambda batch, vision: None))
"""Calls without looking at images; an error while computing counts as not refused."""


REFUSED_ROWS = breaks.rows(
    row("ImagesUnchecked", "Computes with whatever media it is given.", "train.images.refused", forward=_UNCHECKED,
        train_step=_UNCHECKED),
    row("ImagesCheckedInTrainingOnly", "Scores with whatever media it is given, and refuses to train on them.",
        "train.images.refused", forward=_UNCHECKED),
)  # fmt: skip


@contextmanager
def _deeper(change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let what a tower adds behind the first layers be something else."""
    original = VisionTower.inputs

    def inputs(self: VisionTower, batch: Batch, packing: Packing) -> Any:
        found = dict(original(self, batch, packing))
        if "deepstack_visual_embeds" in found:
            found["deepstack_visual_embeds"] = [change(stack) for stack in found["deepstack_visual_embeds"]]
        return found

    with put(VisionTower, inputs=inputs):
        yield


def _placed_where_seen(embeds: Tensor, marks: Tensor, features: Tensor) -> Tensor:
    return embeds.masked_scatter(marks[:, None], features) if bool(marks.any()) else embeds


_FORGOTTEN = within(lambda: _deeper(lambda stack: stack * 0.0))
_NOT_LEARNT = within(lambda: _deeper(lambda stack: stack.detach()))


REFERENCE_ROWS = breaks_reference.rows(
    row("DeeperFeaturesForgotten", "Shows a model its images in the embeddings only, and not behind the first layers.",
        "train.images.kinds", forward=_FORGOTTEN, train_step=_FORGOTTEN),
    row("DeeperFeaturesNotLearnt", "Adds features of the tower behind the first layers, and does not learn from that.",
        "train.images.kinds", train_step=_NOT_LEARNT),
    row("TowerLeftAlone", "Leaves the tower out of steps on text alone, and counts them for it in a state.",
        "train.images.state", train_step=within(lambda: put(images_module, _placed=_placed_where_seen))),
    row("NewerProcessorLeftBehind", "Writes the file of a processor that older folders have, and no other.",
        "train.images.folder",
        save_weights=then(lambda path: (path / "processor_config.json").unlink(missing_ok=True))),
    row("ImagesIgnored", "Is shown images and trains on the tokens that stand for them.", "train.refuse.images",
        claims={"images": not_yet("it does not look")}, forward=given(media=dict),
        train_step=given(media=dict)),
)  # fmt: skip
