"""New weights beside the ones serving: taken, checked and proved in phase one, swapped in phase two.

Knows: names, shapes, dtypes, tied tensors, fingerprints, two buffers per parameter, none while the engine sleeps.
Does not know: where the bytes come from, or when the swap is safe (`loop` does).

A tensor sent in another floating dtype than the engine serves is fingerprinted as it arrived and cast
after that, so both sides compare the same bytes and the cast is the only thing not proved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from areal_core.contract.errors import CoverageError, ModelError, VersionRegressed, WeightSyncError
from areal_core.contract.weights import Receipt, WeightManifest, WeightSource
from areal_serving.weights import Coverage, check_names, torch_dtype
from areal_torch import hf, lora
from areal_torch.offload import DeviceMemory, own_memory
from areal_torch.proved_copy import copy_proved


@frozen(kw_only=True)
class Place:
    """Where a tensor of a model folder lies within the parameter that holds it, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@define(kw_only=True, eq=False)
class WeightStage:
    """Double-buffers every parameter of a model. `version` is what serves; `staged` what could.

    `receive` runs outside the compute thread, `commit` and `abort` between two steps.
    """

    model: Any  # Any: transformers is untyped
    clock: Callable[[], float] = time.perf_counter
    version: int = 0
    staged: int | None = None
    spare: dict[str, Tensor] = field(factory=dict)
    cancelled: threading.Event = field(factory=threading.Event)
    asleep: bool = False
    empty: bool = False
    """Whether nothing serves: the engine slept, and no version was committed since."""
    _places: dict[str, dict[str, Place]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Find out how a sender names the parameters."""
        self._places = self.places()

    def parameters(self) -> Mapping[str, Tensor]:
        """Return what an update replaces."""
        return dict(self.model.named_parameters())

    def places(self) -> dict[str, dict[str, Place]]:
        """Return where each tensor a sender names lies within them."""
        return folder_places(self.model)

    def tied(self) -> Mapping[str, str]:
        """Return which names share a tensor with another."""
        return hf.tied_weights(self.model)

    def receive(self, source: WeightSource, version: int) -> Receipt:
        """Take every tensor of `version` into the spare buffers.

        Raises:
            CoverageError, VersionRegressed: nothing is staged, and what serves is untouched.
            WeightSyncError: `cancel` was called meanwhile, or the source holds another version.
        """
        started = self.clock()
        self.cancelled.clear()
        self.staged = None
        if self.asleep:
            raise WeightSyncError("the engine sleeps", why="it has no memory for weights", fix="call wake first")
        if version <= self.version:
            raise VersionRegressed(
                f"weights of version {version} were offered", why=f"version {self.version} is serving already"
            )
        try:
            receipt = self._take(source, version, started)
        finally:
            source.close()
        self.staged = version
        return receipt

    def _take(self, source: WeightSource, version: int, started: float) -> Receipt:
        manifest = source.manifest
        if manifest.version != version:
            raise WeightSyncError(
                f"version {version} was announced", why=f"the source holds version {manifest.version}"
            )
        coverage = Coverage(manifest)
        targets = self._targets(manifest)
        for bucket in source.buckets():
            for name, tensor in bucket.items():
                if self.cancelled.is_set():
                    raise WeightSyncError(f"receiving version {version} was aborted")
                coverage.check(name, tensor)
            _store(coverage, bucket, targets)
        return coverage.receipt(self.clock() - started)

    def _targets(self, manifest: WeightManifest) -> dict[str, list[Tensor]]:
        """Return the spare buffers each announced tensor fills, after checking coverage both ways."""
        spare = self._views()
        tied = self.tied()
        check_names({*spare, *tied}, manifest)
        for name, carrier in tied.items():
            if manifest.tied.get(name, carrier) != carrier or name not in manifest.tied:
                raise CoverageError(
                    f"tensor {name!r} has no destination of its own",
                    why=f"the model serving shares it with {carrier!r}, the sender does not",
                    fix="use the same tie_word_embeddings on both sides",
                )
        targets = {}
        for spec in manifest.tensors:
            followers = [name for name, carrier in manifest.tied.items() if carrier == spec.name and name in spare]
            targets[spec.name] = [spare[name] for name in (spec.name, *followers)]
            for target in targets[spec.name]:
                if tuple(target.shape) != spec.shape or not torch_dtype(spec).is_floating_point:
                    raise CoverageError(
                        f"tensor {spec.name!r} was announced as {spec.dtype} {list(spec.shape)}",
                        why=f"the model has {str(target.dtype).removeprefix('torch.')} {list(target.shape)}",
                        fix="train and serve the same model",
                    )
        return targets

    def _views(self) -> dict[str, Tensor]:
        """Return the spare buffers under the names they have in a model folder."""
        views: dict[str, Tensor] = {}
        for name, parameter in self.parameters().items():
            spare = self.spare.get(name)
            if spare is None or not spare.is_contiguous():
                spare = self.spare[name] = torch.empty_like(parameter, memory_format=torch.contiguous_format)
            for part, place in self._places[name].items():
                views[part] = spare.as_strided(place.size, place.stride, spare.storage_offset() + place.offset)
        return views

    def cancel(self) -> None:
        """Make a `receive` under way give up at its next tensor. Any thread."""
        self.cancelled.set()

    def commit(self, version: int) -> bool:
        """Serve the staged version; return False if it is serving already. Between two steps only.

        Raises:
            WeightSyncError: another version, or none, is staged.
        """
        if version == self.version and self.staged is None:
            return False
        if version != self.staged:
            raise WeightSyncError(
                f"version {version} cannot be committed",
                why="nothing is staged" if self.staged is None else f"version {self.staged} is staged",
                fix="call receive_weights for it first",
            )
        for name, parameter in self.parameters().items():
            parameter.data, self.spare[name] = self.spare[name], parameter.data
        if self.empty:
            self.spare.clear()
        self.version, self.staged, self.empty = version, None, False
        return True

    def sleep(self) -> None:
        """Give up the weights that serve, and the spare buffers. Between two steps only, and idempotent."""
        self.staged, self.asleep, self.empty = None, True, True
        self.spare.clear()
        self.leave()

    def wake(self) -> None:
        """Be ready to receive weights; until they are committed nothing can serve. Idempotent."""
        if self.asleep:
            self.come_back()
        self.asleep = False

    def leave(self) -> None:
        """Free the parameters: the next version brings all of them. Each keeps its shape, and one element of memory."""
        for parameter in self.model.parameters():
            parameter.data = parameter.new_zeros(()).expand(parameter.shape)

    def come_back(self) -> None:
        """Take memory for what the next version does not bring: nothing."""

    def abort(self) -> None:
        """Drop what is staged; the buffers stay for the next version. Idempotent."""
        self.staged = None


class AdapterStage(WeightStage):
    """Double-buffers the adapter of a model and nothing else; names are PEFT's."""

    _base: DeviceMemory = field(init=False)

    def leave(self) -> None:
        """Move everything elsewhere: the next version is over the same base."""
        own_memory(self.model)
        parameters = list(self.model.parameters())
        self._base = DeviceMemory(parameters[0].device, parameters)
        self._base.offload()

    def come_back(self) -> None:
        """Bring the base back."""
        self._base.onload()

    def parameters(self) -> Mapping[str, Tensor]:
        """Return every A and B."""
        return lora.adapter_parameters(self.model)

    def places(self) -> dict[str, dict[str, Place]]:
        """Return each as it is."""
        return {
            name: {lora.peft_name(name): Place(size=tuple(tensor.shape), stride=tensor.stride(), offset=0)}
            for name, tensor in self.parameters().items()
        }

    def tied(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}


def folder_places(model: Any) -> dict[str, dict[str, Place]]:
    """Return, for each parameter, the places of the tensors a model folder stores it as.

    Almost always one, itself; fused experts are several. transformers copies those, so the places are found
    by converting a parameter that counts its own elements.

    Raises:
        ModelError: a tensor is no strided part of its parameter, so it cannot be updated in place.
    """
    places: dict[str, dict[str, Place]] = {}
    for name, parameter in model.named_parameters():
        empty = torch.empty(parameter.shape, device="meta")
        stored = hf.folder_tensors(model, name, empty)
        if list(stored) == [name] and stored[name] is empty:
            places[name] = {name: Place(size=tuple(empty.shape), stride=empty.stride(), offset=0)}
            continue
        counting = torch.arange(parameter.numel()).view(parameter.shape)
        places[name] = {part: _place(part, found) for part, found in hf.folder_tensors(model, name, counting).items()}
    return places


def _place(name: str, found: Tensor) -> Place:
    """Return where the counted elements `found` lie."""
    origin = (0,) * found.ndim
    steps = [tuple(int(axis == dim) for axis in range(found.ndim)) for dim in range(found.ndim)]
    offset = int(found[origin])
    stride = tuple(int(found[s]) - offset if found.shape[d] > 1 else 0 for d, s in enumerate(steps))
    axes = [torch.arange(size).view(-1, *[1] * (found.ndim - dim - 1)) for dim, size in enumerate(found.shape)]
    expected = sum((axis * step for axis, step in zip(axes, stride, strict=True)), torch.tensor(offset))
    if not torch.equal(expected.expand_as(found), found):
        raise ModelError(
            f"{name!r} cannot be updated in place",
            why="transformers stores it in another form than it computes with",
            fix="use the vllm or sglang backend for this model",
        )
    return Place(size=tuple(found.shape), stride=stride, offset=offset)


def _store(coverage: Coverage, bucket: Mapping[str, Tensor], targets: Mapping[str, list[Tensor]]) -> None:
    """Copy tensors to their targets; fingerprints are of the bytes as they arrived, before any cast."""
    arrived = {
        name: targets[name][0] if targets[name][0].dtype == tensor.dtype else torch.empty_like(tensor)
        for name, tensor in bucket.items()
    }
    held = copy_proved((arrived[name], tensor) for name, tensor in bucket.items())
    for (name, first), digits in zip(arrived.items(), held, strict=True):
        coverage.record(name, digits)
        for target in targets[name]:
            if target is not first:
                target.copy_(first)
