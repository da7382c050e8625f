"""Save and load all that makes the next step the same: weights, optimizer, schedule, random state.

Knows: what belongs to an exact state.
Does not know: files (`areal_torch.state`) or how parameters are cut (`box` does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import Factory, field, frozen
from torch import Tensor

from areal_torch.background import Background
from areal_torch.device import random_state, restore_random_state
from areal_torch.folder import write_folder
from areal_torch.group import RankGroup
from areal_torch.optimizer import Optimizer, local
from areal_torch.pieces import Box, box_of
from areal_torch.state import Part, Piece, load_state


@frozen(kw_only=True, eq=False)
class TrainingState:
    """What one rank holds of the state.

    `facts` are json that must be equal when it is loaded again (Any: the engine's own).
    `box` tells for a parameter where this rank's part of it lies.
    """

    group: RankGroup
    device: torch.device
    parameters: Mapping[str, Tensor]
    optimizer: Optimizer | None
    facts: Mapping[str, Any]
    box: Callable[[Tensor], Box] = box_of
    background: Background = field(init=False, default=Factory(lambda self: Background(self.group), takes_self=True))
    """What was begun and is not finished."""

    def save(self, path: Path, version: int) -> None:
        """Write the state. Collective.

        Raises:
            StorageError: on every rank; a state saved before at `path` is kept.
        """
        write_folder(path, self.group, self._part(version).write)

    def begin(self, path: Path, version: int) -> None:
        """Copy the state into host memory and have it written meanwhile; `background.finish` tells. Collective.

        Raises:
            TrainError: another was begun and not finished.
            StorageError: on every rank; nothing was begun.
        """
        self.background.begin(path, self._part(version).copied)

    def load(self, path: Path) -> int:
        """Return to a saved state and return its policy version. Collective.

        Random states are restored when as many ranks saved as load; nothing else depends on that number.

        Raises:
            CheckpointError: on every rank; nothing is overwritten then.
        """
        saved, own = load_state(path, self.group, self._pieces(), self.facts)
        if self.optimizer is not None:
            self.optimizer.restore(int(saved["steps"]))
        restore_random_state(self.device, own)
        return int(saved["version"])

    def _part(self, version: int) -> Part:
        progress = {"version": version, "steps": self.optimizer.steps if self.optimizer else 0}
        return Part.of(self.group, self._pieces(), random_state(self.device), {**self.facts, **progress})

    def _pieces(self) -> dict[str, Piece]:
        pieces: dict[str, Piece] = {}
        for name, parameter in self.parameters.items():
            box = self.box(parameter)
            tensors = {"weights": local(parameter)}
            if self.optimizer is not None:
                tensors |= {kind: moments[name] for kind, moments in self.optimizer.moments.items()}
            for kind, tensor in tensors.items():
                pieces[f"{kind}/{name}"] = Piece(tensor=tensor, box=box)
        return pieces
