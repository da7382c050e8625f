"""What a checkpoint format gives to `areal convert`.

Knows: tensors by their Hugging Face names, files that are written one by one.
Does not know: any format, or in which order tensors are converted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from attrs import frozen
from torch import Tensor


@frozen(kw_only=True)
class TensorInfo:
    """One tensor of a checkpoint. `dtype` is torch's name, for example "bfloat16"."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Reader(Protocol):
    """An open checkpoint."""

    def tensors(self) -> Sequence[TensorInfo]:
        """Return what it holds, in a fixed order, under Hugging Face names."""

    def read(self, name: str) -> Tensor:
        """Return one tensor whole, on the CPU.

        Raises:
            CheckpointError: a file is missing or torn.
        """

    def companions(self) -> Sequence[Path]:
        """Return the files that belong to the model and hold no weights: config.json, tokenizer, templates."""


class Writer(Protocol):
    """A checkpoint that is being written into a folder."""

    def files(self) -> Sequence[Sequence[str]]:
        """Return which tensors go into each file, the same for the same tensors."""

    def write(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the file of that number; it has its name only when it is complete.

        Raises:
            StorageError: it cannot be written.
        """

    def finish(self) -> None:
        """Write what makes the files a checkpoint, after all of them."""


class Format(Protocol):
    """One way to store a model. Plugins add theirs with the hook `areal_checkpoint_formats`."""

    @property
    def name(self) -> str:
        """Return the word for `--to`."""

    def detect(self, folder: Path) -> bool:
        """Tell from its files whether a folder is of this format; reads no weights."""

    def open(self, folder: Path) -> Reader:
        """Open a checkpoint.

        Raises:
            CheckpointError: it is incomplete, torn, or holds what may not be read.
        """

    def create(self, folder: Path, tensors: Sequence[TensorInfo], companions: Path) -> Writer:
        """Begin, or go on with, a checkpoint in a folder that has the companions in it already.

        Args:
            companions: a folder with the model's config.json.
        """
