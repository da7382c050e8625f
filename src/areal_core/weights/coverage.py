"""Every announced tensor exactly once, nothing else, and the same bytes on both sides.

Knows: names, shapes, dtypes, fingerprints, and what a replica answered to an update.
Does not know: how the bytes travel. Senders, receivers and the controller all check with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from torch import Tensor

from areal_core.contract.errors import ArealError, CoverageError, FingerprintMismatch, WeightSyncError
from areal_core.contract.weights import Receipt, TensorSpec, WeightManifest
from areal_core.weights.tensors import fingerprint, num_bytes, spec_of


class Coverage:
    """Ticks off the tensors of one manifest as they pass.

    Raises:
        CoverageError: the manifest names a tensor twice, or ties a name to nothing sent.
    """

    def __init__(self, manifest: WeightManifest) -> None:
        self.manifest = manifest
        self._specs = {spec.name: spec for spec in manifest.tensors}
        self._fingerprints: dict[str, str] = {}
        twice = [name for name, count in Counter(spec.name for spec in manifest.tensors).items() if count > 1]
        if twice:
            raise CoverageError(f"tensor {twice[0]!r} is announced twice", why=f"{len(twice)} names are not unique")
        for name, carrier in manifest.tied.items():
            if carrier not in self._specs or name in self._specs:
                raise CoverageError(
                    f"tied tensor {name!r} points to {carrier!r}",
                    why="a tied name is not sent itself, and the name that carries its bytes is",
                )

    def check(self, name: str, tensor: Tensor) -> TensorSpec:
        """Return the announced specification of a tensor about to be written.

        Raises:
            CoverageError: not announced, announced otherwise, or seen before.
        """
        spec = self._specs.get(name)
        if spec is None:
            raise CoverageError(
                f"tensor {name!r} was not announced",
                why=f"the manifest of version {self.manifest.version} has {len(self._specs)} other names",
            )
        if name in self._fingerprints:
            raise CoverageError(f"tensor {name!r} was sent twice")
        found = spec_of(name, tensor)
        if found != spec:
            raise CoverageError(
                f"tensor {name!r} is {found.dtype} {list(found.shape)}",
                why=f"it was announced as {spec.dtype} {list(spec.shape)}",
            )
        return spec

    def record(self, name: str, stored: Tensor | str) -> None:
        """Tick the tensor off with the fingerprint of the bytes stored; or that itself, where it is known."""
        self._fingerprints[name] = stored if isinstance(stored, str) else fingerprint(stored)

    def receipt(self, seconds: float) -> Receipt:
        """Return the proof that everything passed.

        Raises:
            CoverageError: an announced tensor did not.
        """
        missing = [name for name in self._specs if name not in self._fingerprints]
        if missing:
            raise CoverageError(
                f"tensor {missing[0]!r} never came",
                why=f"{len(missing)} of {len(self._specs)} announced tensors are missing: {_some(missing)}",
            )
        return Receipt(
            version=self.manifest.version,
            num_bytes=sum(num_bytes(spec) for spec in self.manifest.tensors),
            seconds=seconds,
            fingerprints=dict(self._fingerprints),
        )


def check_names(wanted: Collection[str], manifest: WeightManifest) -> None:
    """Check that a receiver's own tensor names and a manifest's match one to one, tied names included.

    Inference engines call it before they take the first bucket.

    Raises:
        CoverageError: a name on either side has no partner.
    """
    offered = {spec.name for spec in manifest.tensors} | set(manifest.tied)
    _same_names(set(wanted), offered, "the model", "the sender")


def compare(sent: Receipt, received: Receipt, receiver: str) -> None:
    """Check that one replica holds exactly the bytes the trainer sent. Controller, before every commit.

    Raises:
        WeightSyncError: the receipts are of different versions.
        CoverageError: a name on either side has no partner.
        FingerprintMismatch: a tensor's bytes differ; names replica and tensor.
    """
    if sent.version != received.version:
        raise WeightSyncError(
            f"{receiver} received version {received.version}", why=f"the trainer sent version {sent.version}"
        )
    _same_names(set(sent.fingerprints), set(received.fingerprints), "the trainer", receiver)
    wrong = [name for name, digits in sent.fingerprints.items() if received.fingerprints[name] != digits]
    if wrong:
        raise FingerprintMismatch(
            f"{receiver} holds other bytes of {wrong[0]!r} than the trainer sent",
            why=f"{len(wrong)} of {len(sent.fingerprints)} tensors differ: {_some(wrong)}",
            fix="look for a dtype cast, a renamed or transposed tensor, or failing memory on either side",
        )


def _same_names(left: set[str], right: set[str], left_name: str, right_name: str) -> None:
    for has, lacks, only in ((left_name, right_name, left - right), (right_name, left_name, right - left)):
        if only:
            raise CoverageError(
                f"tensor {min(only)!r} is known to {has} but not to {lacks}",
                why=f"{len(only)} names have no partner: {_some(sorted(only))}",
                fix="check the mapping to Hugging Face names on both sides",
            )


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")


def check(sent: Receipt, result: object, replica: str) -> None:
    """Raise what is wrong with one replica's answer, naming the replica."""
    if isinstance(result, Exception):
        raise named(result, replica, sent.version) from result
    if not isinstance(result, Receipt):
        raise WeightSyncError(f"{replica} gave no receipt", why=f"it returned {result!r:.200}")
    compare(sent, result, replica)


def named(error: Exception, replica: str, version: int) -> WeightSyncError:
    """Return the error of one replica as one of the update, naming the replica."""
    if isinstance(error, WeightSyncError):
        return type(error)(f"{replica}: {error.what}", why=error.why, fix=error.fix)
    what = f"{replica} could not take version {version}"
    if isinstance(error, ArealError):
        return WeightSyncError(what, why="\n".join(line for line in (error.what, error.why) if line), fix=error.fix)
    return WeightSyncError(what, why=repr(error))
