"""What the peer process runs: `python -m areal_conformance.benches.transport_peer`.

Knows: reading one JSON line, doing it with the transport under test, answering with one.
Does not know: what is checked.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from areal_conformance.benches import transport_ends, transport_tensors
from areal_conformance.benches.transport_ends import receive
from areal_conformance.benches.transport_tensors import SETS
from areal_conformance.target import Locator, Target, locate
from areal_core.contract.weights import Offer
from areal_core.weights.tensors import manifest_of


class _Host:
    """One end of the transport. Methods are what can be asked for; each takes and returns JSON (Any)."""

    def __init__(self) -> None:
        self._target: Target | None = None
        self._options: dict[str, Any] = {}
        self._transport: Any = None
        self._sink: Any = None
        self._rest: dict[str, Any] = {}
        self._reading: Iterator[Mapping[str, Any]] | None = None

    def locate(self, locator: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        # What takes long is done here, where nobody waits for an answer of the transport.
        assert transport_ends and transport_tensors
        self._target, self._options = locate(Locator(**locator)), options
        self._target.registry.load("transport", self._target.name)
        return {}

    def temporary(self, path: str) -> dict[str, Any]:
        os.environ["TMPDIR"] = tempfile.tempdir = path
        return {}

    def work_in(self, path: str) -> dict[str, Any]:
        """Make another folder the working folder."""
        os.chdir(path)
        return {}

    def open(self, version: int) -> dict[str, Any]:
        offer = self._end().open(version)
        return {"transport": offer.transport, "version": offer.version, "location": dict(offer.location)}

    def send(self, offer: dict[str, Any], name: str, seed: int) -> dict[str, Any]:
        self.begin(offer, name, seed)
        return self.finish()

    def begin(self, offer: dict[str, Any], name: str, seed: int) -> dict[str, Any]:
        """Write the first half of a set of tensors and keep the sink."""
        tensors = SETS[name](seed)
        self._sink = self._end().sink(Offer(**offer))
        self._sink.begin(manifest_of(tensors.items(), version=offer["version"]))
        half = dict(list(tensors.items())[: len(tensors) // 2])
        self._sink.write(half)
        self._rest = {key: tensor for key, tensor in tensors.items() if key not in half}
        return {}

    def finish(self) -> dict[str, Any]:
        """Write the other half, then finish."""
        self._sink.write(self._rest)
        receipt = self._sink.finish()
        return {"num_bytes": receipt.num_bytes, "fingerprints": dict(receipt.fingerprints)}

    def write_large(self, offer: dict[str, Any], num_bytes: int, limit: int) -> dict[str, Any]:
        """Send more than one file of this process may hold, as on a full disk."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        tensors = {"small": torch.ones(64), "large": torch.ones(num_bytes, dtype=torch.uint8)}
        kept = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, kept[1]))
        sink = self._end().sink(Offer(**offer))
        try:
            sink.begin(manifest_of(tensors.items(), version=offer["version"]))
            sink.write({"small": tensors["small"]})
            sink.write({"large": tensors["large"]})
            sink.finish()
        except BaseException:
            sink.abort()
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        return {}

    def receive(self, offer: dict[str, Any]) -> dict[str, Any]:
        received = receive(self._end(), Offer(**offer))
        return {
            "version": received.manifest.version,
            "announced": [[s.name, list(s.shape), s.dtype] for s in received.manifest.tensors],
            "tied": dict(received.manifest.tied),
            "names": list(received.tensors),
            "fingerprints": dict(received.receipt().fingerprints),
        }

    def read_some(self, offer: dict[str, Any]) -> dict[str, Any]:
        """Ask for the first bucket and keep reading open."""
        self._reading = iter(self._end().source(Offer(**offer)).buckets())
        return {"names": list(next(self._reading))}

    def scribble(self, offer: dict[str, Any]) -> dict[str, Any]:
        """Read everything, and write into every tensor that can be written to."""
        count, source = 0, self._end().source(Offer(**offer))
        for bucket in source.buckets():
            for tensor in bucket.values():
                if tensor.numel():
                    tensor.reshape(-1).view(torch.uint8).bitwise_not_()
                    count += 1
        source.close()
        return {"count": count}

    def release(self, offer: dict[str, Any]) -> dict[str, Any]:
        self._end().release(Offer(**offer))
        return {}

    def close(self) -> dict[str, Any]:
        self._end().close()
        return {}

    def reset(self) -> dict[str, Any]:
        self._reading = self._sink = None
        self._rest = {}
        made, self._transport = self._transport, None
        if made is not None:
            made.close()
        return {}

    def _end(self) -> Any:
        assert self._target is not None
        if self._transport is None:
            self._transport = self._target.registry.build("transport", self._target.name, self._options)
        return self._transport


def main() -> None:
    """Answer until standard input ends."""
    host = _Host()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a transport prints must not look like an answer
    for line in sys.stdin:
        message = json.loads(line)
        try:
            told = {"value": getattr(host, message.pop("do"))(**message)}
        except Exception as error:
            told = {
                "error": f"{type(error).__name__}: {error}",
                "kinds": [kind.__name__ for kind in type(error).__mro__],
            }
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
