"""Tensors given back to the device and kept in an unnamed file until they are needed again.

Knows: raw bytes in, raw bytes out; a file without a name ends with its process.
Does not know: whose tensors they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO

import torch
from torch import Tensor

from areal_core.contract.errors import StorageError


class Spill:
    """Either everything is in the tensors, or everything is in the file."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Watch these tensors; moves nothing."""
        self._tensors = list(tensors)
        self._shapes = [tensor.shape for tensor in self._tensors]
        self._file: IO[bytes] | None = None

    @property
    def out(self) -> bool:
        """Whether the tensors are empty now."""
        return self._file is not None

    def push(self, agree: Callable[[Callable[[], None]], object]) -> None:
        """Write every tensor, then, once `agree` says that all ranks have, free its memory. Idempotent."""
        if self._file is not None:
            return
        written: list[IO[bytes]] = []
        try:
            agree(lambda: written.append(self._written()))
        except BaseException:
            for file in written:
                file.close()
            raise
        (self._file,) = written
        for tensor in self._tensors:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def _written(self) -> IO[bytes]:
        """Return a file that holds every tensor."""
        file: IO[bytes] | None = None
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115  kept until `pull`
            for tensor in self._tensors:
                file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            file.flush()
        except OSError as error:
            with suppress(OSError):  # it would write what it has not written yet
                if file is not None:
                    file.close()
            raise StorageError("weights cannot be moved off the device", why=str(error), fix="free disk") from error
        return file

    def pull(self) -> None:
        """Take memory again and read every tensor. Idempotent."""
        if self._file is None:
            return
        self._file.seek(0)
        for tensor, shape in zip(self._tensors, self._shapes, strict=True):
            raw = bytearray(self._file.read(shape.numel() * tensor.element_size()))
            tensor.data = torch.frombuffer(raw, dtype=tensor.dtype).clone().view(shape).to(tensor.device)
        self.drop()

    def drop(self) -> None:
        """Forget the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
