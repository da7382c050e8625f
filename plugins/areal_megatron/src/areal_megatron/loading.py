"""Weights come from a model folder: every rank reads the boxes it holds and nothing else.

Knows: which tensors of a folder a parameter is made of, and how they are joined.
Does not know: files, or how parameters came to be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from areal_megatron.names import FolderTensor, Parameter
from areal_megatron.sharding import Held
from areal_torch.weight_files import Bounds, WeightFiles


def open_folder(path: str, parameters: Sequence[Parameter]) -> WeightFiles:
    """Open a folder that must have what these parameters are made of.

    Raises:
        ModelError: it has not, or cannot be read.
    """
    return WeightFiles.open(path, {part.name: part.shape for each in parameters for part in each.parts})


@torch.no_grad()
def fill(held: Iterable[Held], files: WeightFiles) -> None:
    """Read each parameter's part into its weight and its master. A value head the folder lacks begins at zero.

    Raises:
        ModelError: a file that cannot be read.
    """
    for each in held:
        whole = torch.empty(each.part)
        for part in each.parameter.parts if whole.numel() else ():
            files.read(part.name, _bounds(part, each), each.parameter.pick(whole, part))
        each.whole_part(each.weight).copy_(whole)
        each.master.copy_(each.own(whole))


def _bounds(part: FolderTensor, held: Held) -> Bounds:
    entry, bounds = held.parameter.entry, [(0, size) for size in part.shape]
    if entry.cut is not None:
        rows = part.shape[entry.folder_cut] // part.view[entry.cut]
        bounds[entry.folder_cut] = (held.cut_from * rows, (held.cut_from + held.part[entry.cut]) * rows)
    return bounds
