"""Trainers that treat their sink badly: its protocol, its buckets, its receipt, its errors.

Knows: what each does to a sink.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
from torch import Tensor

from areal_core.contract.errors import StorageError
from areal_core.contract.weights import Receipt, WeightManifest, WeightSink
from areal_core.weights.fingerprint import fingerprint
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import before, breaking, catches, row
from areal_proof.mutants.weight_parts import PassingSink
from areal_reference.train.engine import ReferenceTrainEngine

ENGINE = "train/reference"
breaks = breaking(ENGINE, ReferenceTrainEngine)


class OtherSink(ReferenceTrainEngine):
    """The reference trainer, which talks to its sink otherwise. Not a sin by itself."""

    passing: ClassVar[type[PassingSink]] = PassingSink

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send through the other sink."""
        return super().send_weights(None if sink is None else self.passing(sink), version)


@mutant(ENGINE, killers=("train.send.buckets",))
class OneBucket(OtherSink):
    """Gathers the whole model in one bucket."""

    class passing(PassingSink):
        @property
        def bucket_bytes(self) -> int:
            return 1 << 60


@mutant(ENGINE, killers=("train.send.buckets",))
class BucketPerTensor(OtherSink):
    """Makes a bucket of every tensor."""

    class passing(PassingSink):
        @property
        def bucket_bytes(self) -> int:
            return 1


@mutant(ENGINE, killers=("train.send.coverage",), row="one-destination")
class ReceiptNamesNotCompared(OtherSink):
    """Compares only fingerprints that are on both sides."""

    class passing(PassingSink):
        def __init__(self, inner: WeightSink) -> None:
            super().__init__(inner)
            self._own: dict[str, str] = {}

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            self._own.update({name: fingerprint(tensor) for name, tensor in bucket.items()})
            super().write(bucket)

        def finish(self) -> Receipt:
            told = super().finish()
            both = {name: told.fingerprints.get(name, value) for name, value in self._own.items()}
            return attrs.evolve(told, fingerprints=both)


@mutant(ENGINE, killers=("train.send.raising_sink", "train.send.flipped", "train.send.coverage"))
class AbortForgotten(OtherSink):
    """Leaves a sink it could not fill as it is."""

    class passing(PassingSink):
        def abort(self) -> None:
            """Do nothing."""


ROWS = breaks.rows(
    row("EmptyLastBucket", "Ends with a bucket that holds nothing.", "train.send.protocol", base=OtherSink,
        part=("passing", PassingSink), finish=before(lambda self: self.inner.write({}))),
    row("FinishesTwice", "Finishes its sink twice, to be sure.", "train.send.protocol", base=OtherSink,
        part=("passing", PassingSink), finish=before(lambda self: self.inner.finish())),
    row("FullDiskSwallowed", "Takes a sink without room for one that is done.", "train.send.raising_sink",
        send_weights=catches(StorageError, lambda version: Receipt(version=version, num_bytes=0, seconds=0.0,
            fingerprints={}))),
)  # fmt: skip


@mutant(ENGINE, killers=("train.send.foreign_error",))
class AbortsOnOwnErrorsOnly(OtherSink):
    """Aborts a sink only after errors of areal's own."""

    class passing(PassingSink):
        foreign = False

        def _watched(self, action: object, *arguments: object) -> object:
            try:
                return action(*arguments)  # type: ignore[operator]
            except ConnectionError:
                self.foreign = True
                raise

        def begin(self, manifest: WeightManifest) -> None:
            self._watched(self.inner.begin, manifest)

        def write(self, bucket: Mapping[str, Tensor]) -> None:
            self._watched(self.inner.write, bucket)

        def finish(self) -> Receipt:
            receipt = self._watched(self.inner.finish)
            assert isinstance(receipt, Receipt)
            return receipt

        def abort(self) -> None:
            if not self.foreign:
                self.inner.abort()
