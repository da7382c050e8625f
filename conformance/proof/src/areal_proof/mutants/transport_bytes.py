"""Broken transports: what arrives is not what was sent, or other tensors than announced are taken.

Knows: one defect each.
Does not know: which check sees it, except for the names of its killers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.errors import WeightSyncError
from areal_core.contract.weights import WeightManifest
from areal_local.transports.disk import DiskTransport
from areal_local.transports.shm import ShmTransport
from areal_proof.mutants.rows import Original, before, catches, given, gives, row, then
from areal_proof.mutants.weight_parts import PassingSink, breaking_ends
from areal_proof.second.transport import SecondTransport

_, breaks_sink, breaks_source = breaking_ends("transport/disk", DiskTransport)
_, breaks_shm_sink, _ = breaking_ends("transport/shm", ShmTransport)
_, _, breaks_second_source = breaking_ends("transport/second", SecondTransport)


@breaks_second_source("buckets", "transport.bytes.buckets", "transport.bytes.full_bucket")
def LosesLastBucket(original: Original) -> Any:
    """When there is more than one bucket, the last, short one is not yielded."""
    every = list(original())
    yield from every[:-1] if len(every) > 1 else every


@breaks_sink("write", "transport.bytes.overlap")
def SharesWhatIsShared(original: Original, bucket: Mapping[str, Tensor]) -> None:
    """Tensors that begin at one address are stored once: the first of a bucket stands for all."""
    first: dict[int, Tensor] = {}
    kept = {}
    for name, tensor in bucket.items():
        other = first.setdefault(tensor.data_ptr(), tensor) if tensor.numel() else tensor
        enough = other.numel() >= tensor.numel() and other.dtype == tensor.dtype
        kept[name] = other.reshape(-1)[: tensor.numel()].reshape(tensor.shape) if enough else tensor
    original(kept)


SHM_ROWS = breaks_shm_sink.rows(
    row("CopiesLater", "Keeps the sender's tensors and copies them when it is told to finish.", "transport.sink.copies",
        __init__=then(lambda self: setattr(self, "kept", {})), write=lambda self, bucket: self.kept.update(bucket),
        finish=before(lambda self: self.inner.write(self.kept))),
)  # fmt: skip


SOURCE_ROWS = breaks_source.rows(
    row("NothingIsTooLittle", "A version without tensors is taken for one that was never sent.",
        "transport.bytes.nothing",
        __init__=before(lambda inner: None if inner.manifest.tensors else WeightSyncError("the version is empty"))),
    row("RoundsFloats", "Float32 passes through bfloat16 on the way.", "transport.bytes.dtypes",
        "transport.bytes.device", "transport.machine",
        alter=lambda tensor: tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.dtype is torch.float32 else tensor),
    row("ForgetsNegativeZero", "Adds zero to what it reads: -0.0 becomes 0.0.", "transport.bytes.dtypes",
        alter=lambda tensor: tensor + 0.0 if tensor.is_floating_point() else tensor),
    row("ScalarsBecomeVectors", "A tensor without dimensions arrives with one.", "transport.bytes.shapes",
        "transport.bytes.buckets", alter=lambda tensor: tensor.reshape(-1) if tensor.ndim == 0 else tensor),
    row("LosesTies", "Receivers are not told which tensors are tied.", "transport.manifest.whole",
        incident="torchtitan#2402", row="one-destination", announce=given(tied={})),
    row("SortsNames", "The manifest arrives in the order of the alphabet.", "transport.manifest.whole",
        announce=given(tensors=lambda manifest: tuple(sorted(manifest.tensors, key=lambda spec: spec.name)))),
)  # fmt: skip


SINK_ROWS = breaks_sink.rows(
    row("IgnoresStrides", "Stores a transposed matrix in the order of its memory.", "transport.bytes.sets",
        "transport.bytes.shapes", "transport.bytes.overlap",
        write=lambda original, bucket: original({name: t.t().contiguous().reshape(t.shape)
            if t.ndim == 2 and not t.is_contiguous() else t for name, t in bucket.items()})),
    row("SkipsEmptyTensors", "A tensor without elements is taken for one that need not be sent.",
        "transport.bytes.shapes", "transport.bytes.sets", "transport.coverage.missing",
        begin=given(tensors=lambda manifest: tuple(spec for spec in manifest.tensors if 0 not in spec.shape)),
        write=lambda original, bucket: original({name: tensor for name, tensor in bucket.items() if tensor.numel()})),
    row("NamesBecomePaths", "A slash in a tensor's name is replaced, as in a file's.", "transport.names.any",
        row="one-destination",
        begin=given(tensors=lambda manifest: tuple(attrs.evolve(spec, name=spec.name.replace("/", "."))
            for spec in manifest.tensors)),
        write=lambda original, bucket: original({name.replace("/", "."): tensor for name, tensor in bucket.items()})),
    row("CountsTensors", "The receipt's byte count is the number of tensors.", "transport.receipt.true",
        finish=gives(num_bytes=lambda result: len(result.fingerprints))),
    row("SecondsSinceTheStart", "The receipt tells the clock's own time, not how long the update took.",
        "transport.receipt.true", finish=gives(seconds=lambda result: result.seconds + 1e5)),
    row("ProvesNothing", "The receipt holds the same fingerprint for every tensor.", "transport.receipt.true",
        "transport.process.crosses",
        finish=gives(fingerprints=lambda result: dict.fromkeys(result.fingerprints, "0" * 32))),
    row("ProvesTiesToo", "The receipt names a tensor that was not sent.", "transport.receipt.true",
        finish=gives(fingerprints=lambda result: {**result.fingerprints, "lm_head.weight": "0" * 32})),
    row("DropsStrangers", "A tensor nobody announced is left out without a word.", "transport.coverage.unannounced",
        incident="UniRL#166", row="one-destination",
        write=lambda original, self, bucket: original({name: tensor for name, tensor in bucket.items()
            if name in self.specs})),
    row("CastsSilently", "A tensor of another dtype is cast to the one announced.", "transport.coverage.dtype",
        write=lambda original, self, bucket: original({n: t.to(getattr(torch, self.specs[n].dtype)) if n in self.specs
            else t for n, t in bucket.items()})),
    row("FirstWriteWins", "A tensor that comes again is ignored.", "transport.coverage.twice", row="one-destination",
        write=lambda original, self, bucket: original({name: tensor for name, tensor in bucket.items()
            if name not in self.written})),
    row("FillsWithZeros", "A tensor that never came is sent as zeros.", "transport.coverage.missing",
        "transport.machine", row="one-destination",
        finish=before(lambda self: self.inner.write({n: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for n,
            s in self.specs.items() if n not in self.written}))),
    row("AnnouncesWhatWasOffered", "A sender that announces another version is believed to mean the one offered.",
        "transport.version.announced", begin=given(version=lambda self: self.offer.version)),
    row("BeginsAgain", "A second `begin` starts over, on a sink that has begun.", "transport.order.begin",
        begin=catches(WeightSyncError, lambda self, manifest: self.anew(manifest))),
)  # fmt: skip


@breaks_sink("write", "transport.coverage.shape")
def ReshapesSilently(original: Original, self: PassingSink, bucket: Mapping[str, Tensor]) -> None:
    """A tensor with as many elements as announced is reshaped to fit."""
    fitting = {}
    for name, tensor in bucket.items():
        spec = self.specs.get(name)
        same = spec is not None and tensor.numel() == torch.Size(spec.shape).numel()
        fitting[name] = tensor.reshape(spec.shape) if same and spec else tensor
    original(fitting)


@breaks_sink("begin", "transport.coverage.manifest")
def TidiesManifests(original: Original, manifest: WeightManifest) -> None:
    """A manifest with a name twice, or tied to nothing, is mended in silence."""
    specs = tuple({spec.name: spec for spec in reversed(manifest.tensors)}.values())[::-1]
    names = {spec.name for spec in specs}
    tied = {n: c for n, c in manifest.tied.items() if c in names and n not in names}
    original(attrs.evolve(manifest, tensors=specs, tied=tied))
