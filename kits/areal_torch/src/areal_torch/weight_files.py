"""The weights of a model folder, read box by box: for engines of which every rank reads what it holds and no more.

Knows: safetensors files, and whether they hold what a model must have.
Does not know: what an engine calls its parameters, or how it cuts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from safetensors import safe_open
from torch import Tensor

from areal_core.config.model_folder import read_headers
from areal_core.contract.errors import ModelError
from areal_torch.folder_checks import refusing

_HARMLESS = ("rotary_emb.inv_freq", "lm_head.weight", "lm_head.bias", "score.weight", "score.bias")
"""Endings of tensors that a folder may have and a model not: another head, or what is computed anew."""

Bounds = Sequence[tuple[int, int]]
"""Per dimension, where a box begins and where it ends."""


@frozen(eq=False)
class WeightFiles:
    """The tensors of a model folder, open. Any: safetensors is not typed."""

    path: str
    files: Mapping[str, Any]

    @classmethod
    def open(cls, path: str, wanted: Mapping[str, Sequence[int]]) -> WeightFiles:
        """Open every file and refuse what are not the weights of this model; a value head may be missing.

        Args:
            wanted: name -> shape of every tensor the model has.

        Raises:
            ModelError: no weights, a file that is torn, tensors missing, unknown or of other shapes.
        """
        folder = Path(path).expanduser()
        headers = read_headers(folder)
        _check(path, headers, wanted)
        files: dict[str, Any] = {}
        with refusing(f"weights in {path!r} cannot be loaded"):
            for file in sorted(folder.glob("*.safetensors")):
                handle: Any = safe_open(file, framework="pt")
                files |= dict.fromkeys(handle.keys(), handle)
        return cls(path, files)

    def read(self, name: str, bounds: Bounds, into: Tensor) -> None:
        """Read a box into a tensor of as many numbers, in the same order. A tensor that may be missing is zero.

        Raises:
            ModelError: the file cannot be read.
        """
        if name not in self.files:
            into.zero_()
            return
        with refusing(f"weights in {self.path!r} cannot be loaded"):
            box: Tensor = self.files[name].get_slice(name)[tuple(slice(*pair) for pair in bounds)]
            into.copy_(box.reshape(into.shape))


def _check(path: str, headers: Mapping[str, Any], wanted: Mapping[str, Sequence[int]]) -> None:
    missing = set(wanted) - set(headers)
    if "score.weight" in missing:
        missing -= {"score.weight", "score.bias"}
    unknown = {name for name in set(headers) - set(wanted) if not name.endswith(_HARMLESS)}
    refuse_other_names(path, missing, unknown)
    for name, shape in wanted.items():
        if name in headers and list(headers[name]["shape"]) != list(shape):
            raise ModelError(
                f"{name} in {path!r} has the shape {headers[name]['shape']}",
                why=f"by config.json it is {list(shape)}",
                fix="use config.json and *.safetensors from the same model",
            )


def refuse_other_names(path: str, missing: set[str], unknown: set[str]) -> None:
    """Refuse a folder that lacks tensors of its model, or has tensors of another.

    Raises:
        ModelError: any are named.
    """
    if missing or unknown:
        raise ModelError(
            f"weights in {path!r} do not match its config.json",
            why=f"missing: {_few(missing)}; unknown: {_few(unknown)}",
            fix="use config.json and *.safetensors from the same model",
        )


def _few(names: set[str]) -> str:
    shown = sorted(names)[:4]
    return (", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")) or "none"
