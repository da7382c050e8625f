"""Weight sinks that remember, refuse and lie.

Knows: the WeightSink protocol.
Does not know: engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
from torch import Tensor

from areal_core.contract.weights import Receipt, WeightManifest
from areal_torch.testing.memory_weights import MemorySink


class RecordingSink(MemorySink):
    """A memory sink that remembers the order of calls and the tensors it was handed."""

    def __init__(self, bucket_bytes: int = 1 << 20, spoil: Callable[[str, Tensor], Tensor] | None = None) -> None:
        super().__init__(bucket_bytes, spoil)
        self.calls: list[str] = []
        self.given: dict[str, Tensor] = {}

    def begin(self, manifest: WeightManifest) -> None:
        """Remember that it began."""
        self.calls.append("begin")
        super().begin(manifest)

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Remember the tensors themselves, too."""
        self.calls.append("write")
        self.given.update(bucket)
        super().write(bucket)

    def finish(self) -> Receipt:
        """Remember that it finished."""
        self.calls.append("finish")
        return super().finish()

    def abort(self) -> None:
        """Remember that it was aborted."""
        self.calls.append("abort")
        super().abort()


class RaisingSink(RecordingSink):
    """A sink that raises in one call: `begin`, `finish`, or the write of that number, counted from 0."""

    def __init__(self, at: str | int, error: Exception) -> None:
        super().__init__(bucket_bytes=20_000)
        self._at = at
        self._error = error

    def begin(self, manifest: WeightManifest) -> None:
        """Begin, or raise."""
        super().begin(manifest)
        if self._at == "begin":
            raise self._error

    def write(self, bucket: Mapping[str, Tensor]) -> None:
        """Write, or raise."""
        number = self.calls.count("write")
        super().write(bucket)
        if self._at == number:
            raise self._error

    def finish(self) -> Receipt:
        """Finish, or raise."""
        receipt = super().finish()
        if self._at == "finish":
            raise self._error
        return receipt


class LyingSink(RecordingSink):
    """A sink whose receipt is changed before it is returned."""

    def __init__(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        super().__init__()
        self._change = change

    def finish(self) -> Receipt:
        """Return the changed receipt."""
        receipt = super().finish()
        return attrs.evolve(receipt, fingerprints=self._change(dict(receipt.fingerprints)))
