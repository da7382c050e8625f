"""Trainers that take a model for a usual one, or keep moments in half, only where there is more than one rank.

Knows: the parts of the second trainer.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import torch

from areal_proof.mutants.rows import breaking, row, then
from areal_proof.mutants.train_precision import keep
from areal_proof.mutants.train_ranks import Sharing
from areal_proof.second.train.engine import SecondTrainEngine, Started

breaks = breaking("train/second", SecondTrainEngine, ranks=2)


class _OtherArchitecture(Sharing):
    """A trainer whose ranks take the model for another. No defect by itself."""

    usual: ClassVar[dict[str, Any]] = {}

    def spoil(self, here: Started) -> None:
        """Put another model in place of the right one."""
        network = attrs.evolve(
            here.columns.network, architecture=attrs.evolve(here.architecture, **self.usual), ranks=here.ranks
        )
        self.started = attrs.evolve(here, columns=attrs.evolve(here.columns, network=network))


def _narrow(here: Started) -> None:
    if here.adam is not None and here.ranks.size > 1:
        keep({name: moment for name, moment in here.adam.moments.items() if name.startswith("second/")}, torch.float16)


ROWS = breaks.rows(
    row("RanksNormAsUsual", "Norms with the usual epsilon where there are several ranks.", "train.ranks.zoo",
        base=_OtherArchitecture, usual={"epsilon": 1e-6}),
    row("SharedMomentsInHalf", "Keeps second moments in float16 where there are several ranks.",
        "train.ranks.moments", train_step=then(lambda self: _narrow(self.running()))),
)  # fmt: skip
