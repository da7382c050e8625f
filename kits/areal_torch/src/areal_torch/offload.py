"""Weights and optimizer off the device between two steps, and back to the bit.

Knows: storages, and where they wait: in host memory those of an accelerator, in an unnamed file those of the host.
Does not know: whose tensors they are, or who uses the device meanwhile.

A storage is emptied and filled again; every tensor that looks into it, a shard or an alias, stays what it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO, Protocol

import torch
from torch import Tensor, nn

from areal_core.contract.errors import StorageError
from areal_core.weights.tensors import octets
from areal_torch.device import release_cache, synchronize
from areal_torch.optimizer import local


class DeviceMemory:
    """The device memory of some tensors: here, or away."""

    def __init__(self, device: torch.device, tensors: Iterable[Tensor]) -> None:
        """Watch these tensors, or the parts of them this rank holds; those on another device never move."""
        self._device = device
        self._tensors = list(tensors)
        self._moved: list[Tensor] = []
        self._place: _Place | None = None

    @property
    def away(self) -> bool:
        """Whether the tensors have no memory now."""
        return self._place is not None

    def offload(self) -> None:
        """Copy every tensor elsewhere and free its memory. Idempotent.

        Raises:
            StorageError: no room for them; nothing was freed.
        """
        if self._place is not None:
            return
        synchronize(self._device)
        moved = self._storages()
        self._place = _File(moved) if self._device.type == "cpu" else _HostMemory(moved)
        self._moved = moved
        for raw in self._moved:
            raw.untyped_storage().resize_(0)
        release_cache(self._device)

    def onload(self) -> None:
        """Take memory again and bring back the same bits. Idempotent."""
        if self._place is None:
            return
        for raw in self._moved:
            raw.untyped_storage().resize_(raw.numel())
        self._place.fetch(self._moved)
        synchronize(self._device)
        self.drop()

    def drop(self) -> None:
        """Forget what waits elsewhere. Idempotent."""
        place, self._place = self._place, None
        self._moved = []
        if place is not None:
            place.close()

    def _storages(self) -> list[Tensor]:
        """Return each storage once, as uint8 [bytes].

        Raises:
            StorageError: one cannot be freed, because others see its memory too.
        """
        found: dict[int, Tensor] = {}
        for tensor in self._tensors:
            held = local(tensor)
            storage = held.untyped_storage()
            if held.device.type == self._device.type and storage.nbytes():
                if not storage.resizable():
                    raise StorageError(
                        f"a weight of shape {list(held.shape)} cannot be moved off the device",
                        why="its memory was handed to numpy, or is a mapped file; freeing it would pull it from there",
                        fix="hand out a copy: tensor.clone().numpy()",
                    )
                found[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8, device=held.device).set_(storage)
        return list(found.values())


def own_memory(model: nn.Module) -> None:
    """Copy parameters that lie in a mapped file, as safetensors loads them, into memory that can be given back."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.untyped_storage().resizable():
                parameter.data = parameter.data.clone()


class _Place(Protocol):
    """Where bytes wait."""

    def fetch(self, into: Sequence[Tensor]) -> None:
        """Copy them back."""

    def close(self) -> None:
        """Give up the place."""


class _HostMemory:
    """Copies in the memory of the host."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._copies = [torch.empty_like(tensor, device="cpu").copy_(tensor) for tensor in tensors]

    def fetch(self, into: Sequence[Tensor]) -> None:
        for tensor, copy in zip(into, self._copies, strict=True):
            tensor.copy_(copy)

    def close(self) -> None:
        self._copies = []


class _File:
    """An unnamed file in the temporary folder (TMPDIR); it ends with the process at the latest."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  kept until `close`
        try:
            for tensor in tensors:
                self._file.write(octets(tensor))
            self._file.flush()
        except OSError as error:
            with suppress(OSError):  # it would write what it has not written yet
                self._file.close()
            raise StorageError(
                "weights cannot be moved off the device",
                why=f"on a CPU they go to a file in {tempfile.gettempdir()}: {error}",
                fix="free space there, or set TMPDIR to a folder on another disk",
            ) from error

    def fetch(self, into: Sequence[Tensor]) -> None:
        self._file.seek(0)
        for tensor in into:
            count = self._file.readinto(octets(tensor))  # type: ignore[attr-defined]  # of io.BufferedRandom
            assert count == tensor.numel(), "a file nobody else can reach was cut"

    def close(self) -> None:
        self._file.close()
