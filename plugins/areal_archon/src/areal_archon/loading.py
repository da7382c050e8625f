"""Weights come from a model folder: every rank reads the boxes it holds and nothing else.

Knows: which tensors of a folder a parameter is made of.
Does not know: files, or how parameters came to be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from areal_archon.models.names import Parameter
from areal_archon.sharding import Held
from areal_torch.optimizer import local
from areal_torch.weight_files import WeightFiles


def open_folder(path: str, parameters: Sequence[Parameter]) -> WeightFiles:
    """Open a folder that must have what these parameters are made of.

    Raises:
        ModelError: it has not, or cannot be read.
    """
    return WeightFiles.open(path, {name: each.folder_shape for each in parameters for name in each.folder_names})


@torch.no_grad()
def fill(held: Iterable[Held], files: WeightFiles) -> None:
    """Read each parameter's box into it. A value head the folder lacks begins at zero.

    Raises:
        ModelError: a file that cannot be read.
    """
    for each in held:
        names, part = each.parameter.folder_names, local(each.tensor)
        bounds = [(at, at + size) for at, size in zip(each.box.offset, part.shape, strict=True)]
        if not part.numel():
            continue
        if each.parameter.entry.stacked:
            for row, name in zip(part, names[slice(*bounds[0])], strict=True):
                files.read(name, bounds[1:], row)
        else:
            files.read(names[0], bounds, part)
