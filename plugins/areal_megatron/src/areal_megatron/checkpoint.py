"""Distributed checkpoints of Megatron-Core (`torch_dist`), for `areal convert`.

Knows: what Megatron calls its parameters in a checkpoint, and that layers which are alike lie in one tensor.
Does not know: optimizers, whose tensors are left where they are; how pieces are stored (`areal_torch.conversion.dcp`).

Its index is a pickle and is read as that of a `dcp`: by a reader that refuses every name which is not part of an index.
`common.pt`, which holds no weights, is not read at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from attrs import field, frozen
from torch import Tensor

from areal_core.contract.errors import CheckpointError
from areal_core.contract.train import Head
from areal_megatron.fitting import shape_of
from areal_megatron.names import EMBEDDING, HEAD, parameters_of
from areal_torch.conversion import dcp
from areal_torch.conversion.format import Reader, TensorInfo, Writer
from areal_torch.conversion.grouping import FILE_BYTES, size_of
from areal_torch.folder import storage_errors
from areal_torch.parameters import Parameter
from areal_torch.shape import ModelShape

DESCRIPTION = "metadata.json"
_FIX = "take config.json of the model the checkpoint is of"
_BACKEND = "torch_dist"
_NORMS = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}
"""Norms that lie beside the linear layer behind them, whatever layers the model was built of."""


@frozen
class MegatronFolder:
    """The format `megatron`."""

    name: str = "megatron"

    def detect(self, folder: Path) -> bool:
        """Tell by the description beside the index."""
        try:
            description = json.loads((folder / DESCRIPTION).read_text())
        except (OSError, ValueError):
            return False
        return isinstance(description, dict) and description.get("sharded_backend") == _BACKEND

    def open(self, folder: Path) -> Reader:
        """Read its index, and config.json, which tells how the tensors are to be taken apart.

        Raises:
            CheckpointError: it is torn, or of another model than config.json says.
        """
        return _Folder.open(folder)

    def create(self, folder: Path, tensors: Sequence[TensorInfo], companions: Path) -> Writer:
        """Write files of at most 4 GiB.

        Raises:
            CheckpointError: the tensors are not those of the model that config.json describes.
        """
        return _Files(folder, {info.name: info for info in tensors}, _shape(companions))


@frozen(eq=False)
class _Folder:
    """Implements Reader."""

    folder: dcp.Folder
    infos: Mapping[str, TensorInfo]
    boxes: Mapping[str, tuple[Parameter, TensorInfo, tuple[int, ...]]]
    """For each tensor of a model folder: the parameter it is of, what holds that here, and where in it: its indices."""

    @classmethod
    def open(cls, path: Path) -> _Folder:
        """Find every parameter of the model."""
        folder, shape = dcp.Folder(path), _shape(path)
        there = {info.name: info for info in folder.tensors()}
        infos, boxes = {}, {}
        for parameter in parameters_of(shape):
            held, at = _find(path, parameter, there, shape)
            for part in parameter.parts:
                infos[part.name] = TensorInfo(name=part.name, shape=part.shape, dtype=held.dtype)
                boxes[part.name] = (parameter, held, at)
        _refuse_rest(path, set(there) - {held.name for _, held, _ in boxes.values()})
        return cls(folder, infos, boxes)

    def tensors(self) -> Sequence[TensorInfo]:
        """Return those of a model folder."""
        return list(self.infos.values())

    def read(self, name: str) -> Tensor:
        """Take one tensor out of its parameter."""
        parameter, held, at = self.boxes[name]
        bounds = [(index, index + 1) for index in at] + [(0, size) for size in _rows(parameter)]
        whole = self.folder.part(held.name, bounds).reshape(parameter.shape)
        return parameter.split(whole)[name].contiguous()

    def companions(self) -> Sequence[Path]:
        """Return what lies beside the index."""
        return self.folder.companions()


@frozen(eq=False)
class _Files:
    """Implements Writer. A file has whole parameters; each is a piece of the tensor that holds its layers."""

    folder: Path
    infos: Mapping[str, TensorInfo]
    shape: ModelShape
    groups: list[list[Parameter]] = field(init=False)

    @groups.default
    def _cut(self) -> list[list[Parameter]]:
        parameters = parameters_of(self.shape)
        wanted = {part.name: part.shape for each in parameters for part in each.parts}
        if wanted != {name: info.shape for name, info in self.infos.items()}:
            odd = sorted(set(wanted.items()) ^ {(name, info.shape) for name, info in self.infos.items()})
            raise CheckpointError(
                "the tensors are not those of the model that config.json describes",
                why=f"they differ in {', '.join(sorted({name for name, _ in odd})[:4])}",
                fix="use config.json and the weights from the same model",
            )
        groups: list[list[Parameter]] = []
        size = 0
        for parameter in parameters:
            more = sum(size_of(self.infos[part.name]) for part in parameter.parts)
            if not groups or size + more > FILE_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(parameter)
            size += more
        return groups

    def files(self) -> Sequence[Sequence[str]]:
        return [[part.name for parameter in group for part in parameter.parts] for group in self.groups]

    def write(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        dcp.write_file(self.folder, number, dict(self._pieces(self.groups[number], tensors)))

    def finish(self) -> None:
        places = {}
        for parameter in (each for group in self.groups for each in group):
            key, at, stack = _home(parameter, self.shape)
            rows = _rows(parameter)
            places[parameter.name] = dcp.Place(
                key=key,
                offset=(*at, *(0 for _ in rows)),
                size=(*(1 for _ in at), *rows),
                whole=(*stack, *rows),
                dtype=self.infos[parameter.parts[0].name].dtype,
            )
        dcp.write_index(self.folder, len(self.groups), places)
        with storage_errors(self.folder / DESCRIPTION):
            torch.save({"checkpoint_version": 3.0}, self.folder / "common.pt")  # Megatron asks for the file
            description = {"sharded_backend": _BACKEND, "sharded_backend_version": 1}
            description |= {"common_backend": "torch", "common_backend_version": 1}
            (self.folder / DESCRIPTION).write_text(json.dumps(description))

    def _pieces(self, group: Sequence[Parameter], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for parameter in group:
            whole = torch.empty(parameter.shape, dtype=tensors[parameter.parts[0].name].dtype)
            for part in parameter.parts:
                place = parameter.pick(whole, part)
                place.copy_(tensors[part.name].reshape(place.shape))
            _, at, _ = _home(parameter, self.shape)
            yield parameter.name, whole.reshape([*(1 for _ in at), *_rows(parameter)])


def _shape(folder: Path) -> ModelShape:
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json",
            why="it says how many heads and layers there are, without which the tensors cannot be split",
            fix="copy config.json of the model into the folder",
        )
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"config.json in {folder} cannot be read", why=str(error).splitlines()[0], fix="copy that of the model"
        ) from error
    return shape_of(str(folder), config, Head.CAUSAL_LM)


def _rows(parameter: Parameter) -> tuple[int, ...]:
    """Return a parameter's shape in Megatron: rows and columns of a matrix, one run of anything else."""
    width = parameter.shape[-1:] if parameter.name.endswith(".weight") and len(parameter.shape) > 1 else ()
    return (math.prod(parameter.shape) // math.prod(width), *width)


def _home(parameter: Parameter, shape: ModelShape) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return the tensor that a parameter is written to, its indices there, and how many there are of each.

    Layers lie in one tensor if they are alike, and experts of a layer always.
    """
    key, at, stack = _base(parameter), list[int](), list[int]()
    alike = len(shape.mixtures) in (0, shape.layers)
    if parameter.layer is not None:
        if alike:
            at, stack = [parameter.layer], [shape.layers]
        key = key.replace("{layer}.", "" if alike else f"{parameter.layer}.")
    if parameter.expert is not None:
        at, stack = [*at, parameter.expert], [*stack, shape.experts]
    for norm, fused in _NORMS.items():
        if not (norm.startswith("pre_mlp") and parameter.layer in shape.mixtures):
            key = key.replace(norm, fused)
    return key, tuple(at), tuple(stack)


def _base(parameter: Parameter) -> str:
    return parameter.kind.replace("experts.{expert}", "experts.experts")


def _find(
    path: Path, parameter: Parameter, there: Mapping[str, TensorInfo], shape: ModelShape
) -> tuple[TensorInfo, tuple[int, ...]]:
    """Return what holds a parameter in a checkpoint, whichever layers it was saved of, and its indices in it.

    Raises:
        CheckpointError: nothing does, or something of another shape.
    """
    base = _base(parameter)
    expert = () if parameter.expert is None else ((parameter.expert, shape.experts),)
    layer = () if parameter.layer is None else ((parameter.layer, shape.layers),)
    tried: dict[str, tuple[tuple[int, int], ...]] = {}
    for norm, other in (("", ""), *_NORMS.items()):
        name = base.replace(norm, other) if norm else base
        tried[name.replace("{layer}.", "")] = (*layer, *expert)
        tried[name.replace("{layer}", str(parameter.layer))] = expert
    for key, indices in tried.items():
        if key in there:
            whole = (*(size for _, size in indices), *_rows(parameter))
            _check(path, there[key], whole, may_be_longer=parameter.name in (EMBEDDING, HEAD))
            return there[key], tuple(at for at, _ in indices)
    raise CheckpointError(
        f"{path} has no {parameter.name}",
        why=f"none of its tensors is called {' or '.join(tried)}",
        fix=_FIX,
    )


def _check(path: Path, info: TensorInfo, whole: tuple[int, ...], *, may_be_longer: bool) -> None:
    """Refuse other shapes, but for a vocabulary that was filled up."""
    longer = may_be_longer and len(info.shape) == 2 and info.shape[0] > whole[0] and info.shape[1] == whole[1]
    if info.shape != whole and not longer:
        raise CheckpointError(
            f"{info.name} in {path} has the shape {list(info.shape)}",
            why=f"by config.json it is {list(whole)}",
            fix=_FIX,
        )


def _refuse_rest(path: Path, names: set[str]) -> None:
    """Refuse tensors of a model that config.json does not tell of; an optimizer's have other names."""
    odd = sorted(name for name in names if name.startswith(("embedding.", "decoder.", "output_layer.", "mtp.")))
    if odd:
        raise CheckpointError(
            f"{path} has more than the model that config.json describes",
            why=f"it also has {', '.join(odd[:4])}",
            fix=_FIX,
        )
