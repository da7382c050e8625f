"""Weights come from a model folder: every rank reads the boxes it holds and nothing else.

Knows: which tensors of a folder a parameter is made of, and how they are joined.
Does not know: files, or how parameters came to be cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from areal_megatron.names import folder_cut
from areal_megatron.sharding import Held
from areal_torch.parameters import FolderTensor
from areal_torch.weight_files import Bounds, WeightFiles


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
    cut, bounds = held.parameter.cut, [(0, size) for size in part.shape]
    if cut is not None:
        in_folder = folder_cut(held.parameter)
        rows = part.shape[in_folder] // part.view[cut]
        bounds[in_folder] = (held.cut_from * rows, (held.cut_from + held.part[cut]) * rows)
    return bounds
