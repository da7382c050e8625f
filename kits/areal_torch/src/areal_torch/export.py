"""Weights leave an engine: to the inference fleet, or to a Hugging Face folder. One bucket in memory at a time.

Knows: order, dtype, buckets, fingerprints.
Does not know: how a tensor is made whole (`Weights` does), or where a sink puts it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from attrs import field, frozen
from safetensors.torch import save_file
from torch import Tensor

from areal_core.contract.errors import CoverageError, FingerprintMismatch
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest, WeightSink
from areal_torch import hf, lora
from areal_torch.folder import storage_errors, write_folder
from areal_torch.group import RankGroup, agree
from areal_torch.proved_copy import prove

FILE_BYTES = 4 << 30
"""Size at which a folder's weight file is cut."""

COMPANIONS = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "*.tiktoken",
    "LICENSE*",
)
"""Files that belong to a model folder and that training does not change."""


class Sendable(Protocol):
    """Named tensors in one fixed order on every rank."""

    @property
    def tied(self) -> Mapping[str, str]:
        """Return, for each name that shares another's tensor and is not sent, the name that is."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the whole shape of every tensor, in the order of `wholes`."""

    def wholes(self, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors whole and cast, a few at a time. Collective; what rank 0 is given counts.

        Casting is elementwise: it may come before or after a tensor is made whole.
        """


class Weights(Sendable, Protocol):
    """A model's weights under the names a model folder has for them."""

    @property
    def architecture(self) -> str:
        """Return the name of the transformers class that reads the folder."""


@frozen(eq=False)
class FolderWeights:
    """The weights of a transformers model, adapters merged. `gather` makes a parameter whole; a collective where it
    is sharded."""

    model: hf.Model
    gather: Callable[[Tensor], Tensor]
    _as_they_are: dict[str, str] = field(factory=dict, init=False)
    """Parameters that a folder has as they are, and what it calls them: to ask transformers takes long."""

    @property
    def architecture(self) -> str:
        """Return the model's class."""
        return type(self.model).__name__

    @property
    def tied(self) -> Mapping[str, str]:
        """Return which parameters are one."""
        return {self._stored(name): self._stored(carrier) for name, carrier in hf.tied_weights(self.model).items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all parameters."""
        found: dict[str, tuple[int, ...]] = {}
        for name, parameter in lora.base_parameters(self.model).items():
            shape = torch.empty(parameter.shape, device="meta")
            found |= {key: tuple(tensor.shape) for key, tensor in self._in_folder(name, shape).items()}
        return found

    def wholes(self, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
        """Yield one parameter at a time."""
        for name, tensor in lora.merged_tensors(self.model, self.gather, dtype):
            yield self._in_folder(name, tensor)

    def _stored(self, name: str) -> str:
        """Return the name that a parameter which is one tensor has in a folder."""
        (stored,) = self._in_folder(name, torch.empty(0, device="meta"))
        return stored

    def _in_folder(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Return one parameter under the names and shapes it has in a folder."""
        if (stored := self._as_they_are.get(name)) is not None:
            return {stored: tensor}
        tensors = hf.folder_tensors(self.model, name, tensor)
        if list(map(id, tensors.values())) == [id(tensor)]:
            (self._as_they_are[name],) = tensors
        return tensors


class Exporter:
    """Sends and saves weights, bucket by bucket."""

    def __init__(
        self,
        weights: Weights,
        folder: str,
        dtype: str,
        group: RankGroup,
        beside: Callable[[Path], None] | None = None,
        sent: Sendable | None = None,
    ) -> None:
        """Export `weights`, which began as those of the model folder `folder`, as `dtype`.

        Args:
            beside: writes more into a folder that is saved; collective.
            sent: what is sent in place of `weights`, an adapter alone.
        """
        self.weights = weights
        self.sent = sent or weights
        self.folder = folder
        self.dtype = dtype
        self.group = group
        self._beside = beside

    def manifest(self, version: int) -> WeightManifest:
        """Describe what `send` sends."""
        specs = [TensorSpec(name=name, shape=shape, dtype=self.dtype) for name, shape in self.sent.shapes().items()]
        return WeightManifest(version=version, tensors=specs, tied=self.sent.tied)

    def send(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send every tensor; rank 0 has the sink and gets the receipt. Collective.

        Raises:
            FingerprintMismatch, CoverageError, StorageError: on every rank; the sink is aborted.
        """
        manifest = self.manifest(version)
        sent: dict[str, str] = {}
        receipt: Receipt | None = None

        def begin() -> int:
            if sink is None:
                return 0
            sink.begin(manifest)
            return sink.bucket_bytes

        def write(bucket: dict[str, Tensor]) -> None:
            if sink is not None:
                sent.update(zip(bucket, prove(list(bucket.values())), strict=True))
                sink.write(bucket)

        def finish() -> None:
            nonlocal receipt
            if sink is not None:
                receipt = sink.finish()
                _compare(sent, receipt)

        try:
            bucket_bytes = max(agree(self.group, begin))
            for bucket in self.buckets(bucket_bytes, self.sent):
                agree(self.group, partial(write, bucket))
            agree(self.group, finish)
        except BaseException:
            if sink is not None:
                sink.abort()
            raise
        return receipt

    def save(self, path: Path) -> None:
        """Write a complete model folder at `path`, or nothing. Collective.

        Raises:
            StorageError: on every rank.
        """
        write_folder(path, self.group, self._write)

    def _write(self, folder: Path) -> None:
        total, names = 0, dict[str, str]()
        for number, bucket in enumerate(self.buckets(FILE_BYTES, self.weights)):
            file = folder / f"model-{number + 1:05d}.safetensors"
            agree(self.group, partial(self._write_file, file, bucket))
            total += sum(tensor.nbytes for tensor in bucket.values())
            names |= dict.fromkeys(bucket, file.name)
        if self.group.rank == 0:
            self._finish_folder(folder, total, names)
        if self._beside is not None:
            self._beside(folder)

    def _write_file(self, file: Path, bucket: dict[str, Tensor]) -> None:
        if self.group.rank == 0:
            with storage_errors(file):
                tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in bucket.items()}
                save_file(tensors, file, metadata={"format": "pt"})

    def _finish_folder(self, folder: Path, total: int, names: dict[str, str]) -> None:
        if len(set(names.values())) == 1:
            (folder / "model-00001.safetensors").rename(folder / "model.safetensors")
        else:
            index = {"metadata": {"total_size": total}, "weight_map": names}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
        config = hf.folder_config(self.folder, self.weights.architecture, self.dtype)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for pattern in COMPANIONS:
            for file in Path(self.folder).glob(pattern):
                shutil.copyfile(file, folder / file.name)

    def buckets(self, bucket_bytes: int, weights: Sendable) -> Iterator[dict[str, Tensor]]:
        """Yield whole tensors, as many as fit (at least one), on every rank in step."""
        dtype = getattr(torch, self.dtype)
        bucket: dict[str, Tensor] = {}
        size = 0
        with torch.no_grad():
            for tensors in weights.wholes(dtype):
                more = sum(tensor.nbytes for tensor in tensors.values())
                if bucket and size + more > bucket_bytes:
                    yield bucket
                    bucket, size = {}, 0
                bucket |= tensors
                size += more
        if bucket:
            yield bucket


def _compare(sent: dict[str, str], receipt: Receipt) -> None:
    if set(sent) != set(receipt.fingerprints):
        odd = sorted(set(sent) ^ set(receipt.fingerprints))
        raise CoverageError("the transport took other tensors than were sent", why=f"they differ in {odd[:4]}")
    wrong = [name for name, value in sent.items() if receipt.fingerprints[name] != value]
    if wrong:
        raise FingerprintMismatch(
            f"{len(wrong)} of {len(sent)} tensors of version {receipt.version} were changed on the way",
            why=f"their fingerprints differ: {', '.join(wrong[:4])}",
            fix="check the disk or memory the transport uses; the fleet keeps serving the version before",
        )


def whole(parameter: Tensor) -> Tensor:
    """Return an unsharded parameter as it is: the `gather` of engines that do not shard."""
    return parameter.detach()
