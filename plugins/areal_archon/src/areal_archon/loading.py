"""Weights come from a model folder: every rank reads the boxes it holds and nothing else.

Knows: which tensors of a folder a parameter is made of.
Does not know: files, or how parameters came to be cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from areal_archon.sharding import Held
from areal_torch.optimizer import local
from areal_torch.weight_files import WeightFiles


@torch.no_grad()
def fill(held: Iterable[Held], files: WeightFiles) -> None:
    """Read each parameter's box into it. A value head the folder lacks begins at zero.

    Raises:
        ModelError: a file that cannot be read.
    """
    for each in held:
        parts, part = each.parameter.parts, local(each.tensor)
        bounds = [(at, at + size) for at, size in zip(each.box.offset, part.shape, strict=True)]
        if not part.numel():
            continue
        if each.parameter.stacked:
            for row, expert in zip(part, parts[slice(*bounds[0])], strict=True):
                files.read(expert.name, bounds[1:], row)
        else:
            files.read(parts[0].name, bounds, part)
