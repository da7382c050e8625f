"""Trainers that see wrongly: nothing, another's images, the wrong way round, or without learning to.

Knows: where images pass through the second trainer.
Does not know: checks, beyond the names of those that must find each sin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.data import PIXEL_VALUES
from areal_core.contract.train import Objective, Output, TrainReport, TrainSpec
from areal_core.plugins.claims import not_yet
from areal_proof.mutants import mutant
from areal_proof.second.train import columns as columns_module
from areal_proof.second.train import network
from areal_proof.second.train.engine import SecondTrainEngine, Started
from areal_proof.second.train.ranks import Ranks
from areal_proof.second.train.shown import Shown
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/second"


class Looks(network.Network):
    """A network that is shown something else."""

    def hidden(self, ids_NL: Tensor, routes_NLEK: Tensor | None = None, shown: Shown | None = None) -> Tensor:
        """Change what is shown first."""
        return network.Network.hidden(self, ids_NL, routes_NLEK, self.looked(ids_NL, shown))

    def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
        """Return what is seen."""
        return shown


class Looking(SecondTrainEngine):
    """Has another network."""

    Network: ClassVar[type[Looks]]

    def _build(self, spec: TrainSpec, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> Started:
        here = super()._build(spec, ranks, device, dtype)
        whole = here.columns.network
        fields = {field.name: getattr(whole, field.name) for field in attrs.fields(network.Network)}
        return attrs.evolve(here, columns=attrs.evolve(here.columns, network=self.Network(**fields)))


@mutant(ENGINE, killers=("train.images.scores", "train.images.places", "train.images.gradient"))
class ImagesUnseen(Looking):
    """Makes room for images and takes their tokens for words."""

    class Network(Looks):
        """Is shown nothing."""

        def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
            """Return nothing."""
            return None


@mutant(ENGINE, killers=("train.images.scores", "train.images.with_sequences"))
class ImagesOfTheFirstSequences(Looking):
    """Gives the sequences of a micro-batch their images from the last to the first."""

    class Network(Looks):
        """Is shown the same patches in another order."""

        def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
            """Turn the patches round, and leave every image its size."""
            if shown is None:
                return None
            patches = torch.cat([picture.patches for row in shown.pictures for picture in row]).flip(0)
            left = iter(torch.split(patches, [len(picture.patches) for row in shown.pictures for picture in row]))
            pictures = tuple(
                tuple(attrs.evolve(picture, patches=next(left)) for picture in row) for row in shown.pictures
            )
            return attrs.evolve(shown, pictures=pictures)


@attrs.frozen(kw_only=True, eq=False)
class _InOneLine(Shown):
    def positions(self) -> Tensor:
        """Count."""
        num_rows, length = self.marks_NL.shape
        return torch.arange(length).expand(num_rows, 3, -1)


@mutant(ENGINE, killers=("train.images.scores", "train.images.places"))
class ImagesInOneLine(Looking):
    """Counts the tokens of an image one after another, as those of a text."""

    class Network(Looks):
        """Has positions in one direction."""

        def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
            """Take the positions of text."""
            return None if shown is None else _InOneLine(pictures=shown.pictures, marks_NL=shown.marks_NL)


@mutant(ENGINE, killers=("train.images.places", "train.images.scores"))
class ImagesTurned(Looking):
    """Takes the height of an image for its width."""

    class Network(Looks):
        """Is shown images on their side."""

        def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
            """Swap rows and columns."""
            if shown is None:
                return None
            pictures = tuple(
                tuple(attrs.evolve(picture, rows=picture.columns, columns=picture.rows) for picture in row)
                for row in shown.pictures
            )
            return attrs.evolve(shown, pictures=pictures)


@mutant(ENGINE, killers=("train.images.said",))
class PlaceholdersLookedFor(Looking):
    """Finds the tokens of images by their id, not by their mark: one the policy said moves all after it."""

    class Network(Looks):
        """Goes by ids."""

        def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
            """Mark ids."""
            vision = self.architecture.vision
            if shown is None or vision is None:
                return shown
            return attrs.evolve(shown, marks_NL=ids_NL == vision.image_token)


@mutant(ENGINE, killers=("train.images.gradient",))
class VisionFrozen(Looking):
    """Sees, and does not learn to see better."""

    class Network(Looks):
        """Cuts the gradient behind the tower."""

        def _seen(self, shown: Shown) -> Tensor:
            return super()._seen(shown).detach()


@mutant(ENGINE, killers=("train.images.ranks",), ranks=2)
class OtherRanksSeeNothing(Looking):
    """Looks at images on rank 0 only."""

    class Network(Looks):
        """Asks which rank it is."""

        def looked(self, ids_NL: Tensor, shown: Shown | None) -> Shown | None:
            """See nothing elsewhere."""
            return shown if self.ranks.rank == 0 else None


@mutant(ENGINE, killers=("train.images.kept",))
class ImagesNotGivenBack(SecondTrainEngine):
    """Returns a scored batch without what its sequences showed."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Drop the media."""
        return attrs.evolve(super().forward(batch, outputs), media={})


@mutant(ENGINE, killers=("train.images.kept",))
class ImagesWornByUse(SecondTrainEngine):
    """Normalises patches in the batch it was given."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Write into the rows, afterwards."""
        result = super().forward(batch, outputs)
        if PIXEL_VALUES in batch.media:
            batch.media[PIXEL_VALUES].rows.mul_(0.5)
        return result


@mutant(ENGINE, killers=("train.images.folder",))
class ProcessorLeftBehind(SecondTrainEngine):
    """Writes a folder that nobody can show an image to."""

    def save_weights(self, path: Path) -> None:
        """Lose the processor's settings."""
        super().save_weights(path)
        (path / "preprocessor_config.json").unlink(missing_ok=True)


@mutant(ENGINE, killers=("train.images.folder", "train.images.gradient"))
class VisionNotSent(SecondTrainEngine):
    """Sends and writes the words of a model that sees."""

    def weights_in_use(self) -> dict[str, Tensor]:
        """Leave the tower out."""
        return {name: each for name, each in super().weights_in_use().items() if not name.startswith("visual.")}


@mutant(ENGINE, killers=("train.images.refused",))
class ImagesUnchecked(SecondTrainEngine):
    """Computes with whatever media it is given."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Skip the check."""
        result: Batch = _unchecked(super().forward, batch, outputs)
        return result

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Skip the check."""
        report: TrainReport = _unchecked(super().train_step, batch, objective)
        return report


@mutant(ENGINE, killers=("train.images.refused",))
class ImagesCheckedInTrainingOnly(SecondTrainEngine):
    """Scores with whatever media it is given, and refuses to train on them."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Skip the check."""
        result: Batch = _unchecked(super().forward, batch, outputs)
        return result


def _unchecked(call: Any, *arguments: Any) -> Any:
    """Call without looking at images; an error while computing counts as not refused. Any: a method of the engine."""
    held: Any = columns_module
    whole = held.check_shown
    held.check_shown = lambda batch, vision: None
    try:
        return call(*arguments)
    finally:
        held.check_shown = whole


@mutant("train/reference", killers=("train.refuse.images",), claims={"images": not_yet("it does not look")})
class ImagesIgnored(ReferenceTrainEngine):
    """Is shown images and trains on the tokens that stand for them."""

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Drop the media."""
        return super().forward(attrs.evolve(batch, media={}), outputs)

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Drop the media."""
        return super().train_step(attrs.evolve(batch, media={}), objective)
