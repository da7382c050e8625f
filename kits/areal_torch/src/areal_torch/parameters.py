"""A parameter of an engine and what it is made of in a model folder, for engines that build their models anew.

Engines stack, join and cut what a folder has apart. Seen as an array of more dimensions if need be, every tensor of a
folder is a slice of a parameter, and every rank's part a box of it:

    linear_qkv  [K, q + 2, D, ...]   K key heads, of each the q queries that share it, the key, the value
    experts.up  [E, I, H]            one tensor per expert

Knows: how a parameter is made of a folder's tensors, and along which dimension tensor ranks cut it.
Does not know: names of any engine (each has one table of them), ranks, files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen
from torch import Tensor

from areal_torch.weight_files import WeightFiles


@frozen(kw_only=True)
class FolderTensor:
    """One tensor of a folder as a part of a parameter: its shape there and in the parameter, and where it begins."""

    name: str
    shape: tuple[int, ...]
    view: tuple[int, ...]
    start: int = 0


@frozen(kw_only=True)
class Parameter:
    """One parameter of the whole model: its name and shape in the engine, and the tensors of a folder that make it up.

    The parts lie one after the other along the dimension `joined`; tensor ranks cut it along `cut`, None if each has
    all of it. `kind` is the name with `{layer}` and `{expert}` for numbers, as the engine's table has it. `stacked`
    says that the parts are experts', which expert ranks share. `expert` is the number of the one expert it belongs
    to, where each has parameters of its own.

    Example: Parameter(name="norm.weight", shape=(64,), parts=(FolderTensor(name="model.norm.weight", ...),), ...)
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parts: Sequence[FolderTensor]
    joined: int = 0
    cut: int | None = None
    layer: int | None = None
    expert: int | None = None
    stacked: bool = False

    def split(self, whole: Tensor) -> dict[str, Tensor]:
        """Return the parameter as a folder has it. Views where they can be."""
        return {part.name: self.pick(whole, part).reshape(part.shape) for part in self.parts}

    def pick(self, tensor: Tensor, part: FolderTensor) -> Tensor:
        """Return what one tensor of a folder is of the parameter, or of any rank's box of it. A view."""
        if len(self.parts) == 1:
            return tensor
        return tensor.narrow(self.joined, part.start, part.view[self.joined])


def open_folder(path: str, parameters: Iterable[Parameter]) -> WeightFiles:
    """Open a folder that must have what these parameters are made of.

    Raises:
        ModelError: it has not, or cannot be read.
    """
    return WeightFiles.open(path, {part.name: part.shape for each in parameters for part in each.parts})
