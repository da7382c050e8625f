"""Weights come from a model folder: every rank reads the boxes it holds and nothing else.

Knows: safetensors files, which tensors a folder must have.
Does not know: how parameters came to be cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError, safe_open
from torch import Tensor

from areal_core.config.model_folder import read_headers
from areal_core.contract.errors import ModelError
from areal_megatron.names import FolderTensor, Parameter
from areal_megatron.sharding import Held

_HARMLESS = ("rotary_emb.inv_freq", "lm_head.weight", "lm_head.bias", "score.weight", "score.bias")
"""Endings of tensors that a folder may have and this model not: another head, or what is computed anew."""


@frozen(eq=False)
class Folder:
    """The tensors of a model folder, open. Any: safetensors is not typed."""

    path: str
    files: Mapping[str, Any]

    @classmethod
    def open(cls, path: str, parameters: Sequence[Parameter]) -> Folder:
        """Open every file and refuse what are not the weights of this model.

        Raises:
            ModelError: no weights, a file that is torn, tensors missing, unknown or of other shapes.
        """
        folder = Path(path).expanduser()
        headers = read_headers(folder)
        _check(path, headers, parameters)
        files: dict[str, Any] = {}
        for file in sorted(folder.glob("*.safetensors")):
            handle: Any = safe_open(file, framework="pt")
            files |= dict.fromkeys(handle.keys(), handle)
        return cls(path, files)

    @torch.no_grad()
    def fill(self, held: Iterable[Held]) -> None:
        """Read each parameter's part into its weight and its master. A value head the folder lacks begins at zero.

        Raises:
            ModelError: a file that cannot be read.
        """
        for each in held:
            whole = torch.empty(each.part)
            try:
                for part in each.parameter.parts if whole.numel() else ():
                    target = each.parameter.pick(whole, part)
                    if part.name in self.files:
                        target.copy_(self._read(part, each).reshape(target.shape))
                    else:
                        target.zero_()
            except (OSError, SafetensorError, ValueError) as error:
                raise ModelError(
                    f"weights in {self.path!r} cannot be loaded", why=str(error), fix="copy the folder again"
                ) from error
            each.whole_part(each.weight).copy_(whole)
            each.master.copy_(each.own(whole))

    def _read(self, part: FolderTensor, held: Held) -> Tensor:
        entry, bounds = held.parameter.entry, [(0, size) for size in part.shape]
        if entry.cut is not None:
            rows = part.shape[entry.folder_cut] // part.view[entry.cut]
            start = held.cut_from
            bounds[entry.folder_cut] = (start * rows, (start + held.part[entry.cut]) * rows)
        found: Tensor = self.files[part.name].get_slice(part.name)[tuple(slice(*pair) for pair in bounds)]
        return found


def _check(path: str, headers: Mapping[str, Any], parameters: Sequence[Parameter]) -> None:
    wanted = {part.name: list(part.shape) for each in parameters for part in each.parts}
    missing = set(wanted) - set(headers)
    if "score.weight" in missing:
        missing -= {"score.weight", "score.bias"}
    unknown = {name for name in set(headers) - set(wanted) if not name.endswith(_HARMLESS)}
    if missing or unknown:
        raise ModelError(
            f"weights in {path!r} do not match its config.json",
            why=f"missing: {_few(missing)}; unknown: {_few(unknown)}",
            fix="take config.json and *.safetensors from the same model",
        )
    for name, shape in wanted.items():
        if name in headers and list(headers[name]["shape"]) != shape:
            raise ModelError(
                f"{name} in {path!r} has the shape {headers[name]['shape']}",
                why=f"by config.json it is {shape}",
                fix="take config.json and *.safetensors from the same model",
            )


def _few(names: set[str]) -> str:
    shown = sorted(names)[:4]
    return (", ".join(shown) + (f" and {len(names) - 4} more" if len(names) > 4 else "")) or "none"
