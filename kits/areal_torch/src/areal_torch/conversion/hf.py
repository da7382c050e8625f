"""Hugging Face model folders: safetensors files and an index.

Knows: file names, the index, where a tensor lies.
Does not know: models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.config.model_folder import read_json
from areal_core.contract.errors import CheckpointError
from areal_torch.conversion.companions import companions_of
from areal_torch.conversion.format import Reader, TensorInfo, Writer
from areal_torch.conversion.grouping import size_of, split
from areal_torch.folder import storage_errors
from areal_torch.folder_checks import INDEX, check_index

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "I64": "int64", "I32": "int32"}
_DTYPES |= {"U8": "uint8", "I8": "int8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


@frozen
class HFFolder:
    """The format `hf`."""

    name: str = "hf"

    def detect(self, folder: Path) -> bool:
        """Tell by its weight files."""
        return any(folder.glob("*.safetensors")) and not (folder / ".metadata").exists()

    def open(self, folder: Path) -> Reader:
        """Read the headers of its files."""
        return _Folder(folder)

    def create(self, folder: Path, tensors: Sequence[TensorInfo], companions: Path) -> Writer:
        """Write files of at most 4 GiB."""
        return _Files(folder, {info.name: info for info in tensors})


class _Folder:
    """Implements Reader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._where: dict[str, Path] = {}
        self._infos: list[TensorInfo] = []
        for file in sorted(folder.glob("*.safetensors")):
            for name, header in _headers(file).items():
                if name in self._where:
                    raise CheckpointError(
                        f"{name} is in {self._where[name].name} and in {file.name}",
                        why=f"a model has it once; {folder} holds the files of two",
                        fix="remove the files that belong to another model",
                    )
                self._where[name] = file
                dtype = _DTYPES.get(header["dtype"], "")
                if not dtype:
                    raise CheckpointError(
                        f"{name} in {file} has dtype {header['dtype']}",
                        why=f"this version converts {', '.join(_DTYPES)}",
                    )
                self._infos.append(TensorInfo(name=name, shape=tuple(header["shape"]), dtype=dtype))
        self._check_index()

    def tensors(self) -> Sequence[TensorInfo]:
        return self._infos

    def read(self, name: str) -> Tensor:
        try:
            with safe_open(self._where[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self._where[name]} is torn", why=str(error), fix="copy it again") from error

    def companions(self) -> Sequence[Path]:
        return companions_of(self._folder)

    def _check_index(self) -> None:
        check_index(self._folder)
        index = self._folder / INDEX
        if not index.is_file():
            return
        announced = set(read_json(index)["weight_map"])
        missing = sorted(announced - set(self._where))
        if missing:
            raise CheckpointError(
                f"{self._folder} lacks {len(missing)} of {len(announced)} tensors its index names",
                why=f"the first is {missing[0]}: a file is missing",
                fix="copy the folder again",
            )


def _headers(file: Path) -> Mapping[str, Any]:
    """Return the header of one file. Any: json."""
    try:
        if not file.is_file():
            raise FileNotFoundError("it is no regular file")
        with safe_open(file, framework="pt") as opened:
            found = {}
            for name in opened.keys():  # noqa: SIM118  no mapping
                view = opened.get_slice(name)
                found[name] = {"dtype": view.get_dtype(), "shape": view.get_shape()}
            return found
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is torn", why=str(error), fix="copy it again") from error


@frozen
class _Files:
    """Implements Writer."""

    folder: Path
    infos: Mapping[str, TensorInfo]
    groups: list[list[str]] = field(init=False)

    @groups.default
    def _cut(self) -> list[list[str]]:
        return split(list(self.infos.values()))

    def files(self) -> Sequence[Sequence[str]]:
        return self.groups

    def write(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        file = self.folder / self._name(number)
        with storage_errors(file):
            beside = file.with_suffix(".writing")
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside, {"format": "pt"})
            beside.rename(file)

    def finish(self) -> None:
        names = {name: self._name(number) for number, group in enumerate(self.groups) for name in group}
        if len(self.groups) > 1:
            total = sum(size_of(info) for info in self.infos.values())
            with storage_errors(self.folder / INDEX):
                (self.folder / INDEX).write_text(
                    json.dumps({"metadata": {"total_size": total}, "weight_map": names}, indent=1)
                )
        dtypes = {info.dtype for info in self.infos.values() if getattr(torch, info.dtype).is_floating_point}
        if len(dtypes) == 1:
            _set_dtype(self.folder / "config.json", dtypes.pop())

    def _name(self, number: int) -> str:
        count = len(self.groups)
        return "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def _set_dtype(file: Path, dtype: str) -> None:
    """Let config.json tell the dtype of the weights beside it."""
    with storage_errors(file):
        config = read_json(file)
        config.pop("torch_dtype", None)
        file.write_text(json.dumps({**config, "dtype": dtype}, indent=2) + "\n")
