"""What transport checks are given: ends of the transport under test, in this process and in others.

Knows: how a controller, a sender and a receiver are played, and where their files go.
Does not know: any transport, or what is right.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen
from torch import Tensor

from areal_conformance.benches.base import Bench
from areal_conformance.benches.transport_ends import Received, receive, send
from areal_conformance.benches.transport_footprint import Footprint, look
from areal_conformance.benches.transport_process import Peer
from areal_conformance.check import Check
from areal_conformance.outcome import Violation
from areal_conformance.target import Target
from areal_core.contract.optional import SupportsStreaming
from areal_core.contract.weights import Offer, Receipt, WeightTransport
from areal_worker.codec import decode, encode

T = TypeVar("T")

WAIT_S = 15.0
"""How long one call of a transport may take on these small tensors, times the adapter's patience."""
PEER_S = 45.0
"""The same in another process, which may have to be scheduled first."""

ALONE_S = 12.0
"""How long one end of a stream waits for another, if it can be told."""

MOMENT_S = 0.2
"""What a slow receiver takes over its first bucket, so that the sender gets as far ahead of it as it can."""

SETTLE_S = 5.0
"""How long what a call has ended may linger."""
LOOK_S = 0.02


@frozen(kw_only=True)
class Streamed:
    """How each end of one stream ended: by name, a Receipt, a Received, or an exception. Any: either of them."""

    ended: Mapping[str, Any]

    @property
    def sent(self) -> Any:
        """Return what the sender ended with."""
        return self.ended["sender"]

    @property
    def received(self) -> list[Any]:
        """Return what each receiver ended with, in the order they were named."""
        return [self.ended[name] for name in sorted(self.ended) if name != "sender"]

    def all_well(self) -> tuple[Receipt, list[Received]]:
        """Return what both sides have; raise the first error, the sender's first."""
        for end in (self.sent, *self.received):
            if isinstance(end, BaseException):
                raise end
        return self.sent, self.received


def expecting(transport: WeightTransport) -> SupportsStreaming:
    """Return a transport as the one that streams."""
    if not isinstance(transport, SupportsStreaming):
        raise Violation("it claims `streams` and has no method `expect`", law=8)
    return transport


class TransportBench(Bench):
    """Ends made here are closed after each check; every temporary file of the check lies in `temporary`."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._made: list[WeightTransport] = []
        self._peers: dict[str, Peer] = {}
        self._kept: tuple[str | None, str | None] | None = None

    @property
    def temporary(self) -> Path:
        """Return what this process and every peer take for the system's temporary folder."""
        path = self.folder / "temporary"
        path.mkdir(exist_ok=True)
        return path.resolve()

    def begin(self, check: Check) -> None:
        """Give the check a temporary folder of its own."""
        self._restore()
        super().begin(check)
        self._kept = (os.environ.get("TMPDIR"), tempfile.tempdir)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.temporary)

    async def end(self, *, passed: bool) -> None:
        """Close what was made, and forget processes that may be unwell."""
        made, self._made = self._made, []
        try:
            for transport in made:
                self.within(transport.close)
        finally:
            for name, peer in list(self._peers.items()):
                if not passed or not peer.reset():
                    peer.kill()
                    del self._peers[name]
            self._restore()

    def close(self) -> None:
        """End the processes, then remove the folders."""
        for peer in self._peers.values():
            peer.kill()
        self._peers.clear()
        self._restore()
        super().close()

    @property
    def streams(self) -> bool:
        """Return whether sender and receivers must be there at the same time."""
        return self.target.claimed("streams")

    def transport(self, *, small_buckets: bool = False, **given: Any) -> WeightTransport:
        """Build one end with options of its own; call it again for another participant. Any: as they stand in yaml.

        With `small_buckets` it asks for buckets of 1000 bytes, if it has an option `bucket_bytes`. If it has an
        option `timeout_s` it waits for others no longer than a few seconds.
        """
        options: dict[str, Any] = dict(given)
        config = self.target.registry.config_class(self.target.role, self.target.name)
        if small_buckets and hasattr(config, "bucket_bytes"):
            options["bucket_bytes"] = 1000
        if self.streams and hasattr(config, "timeout_s"):
            options["timeout_s"] = ALONE_S * self.target.adapter.patience
        made: WeightTransport = self.build(**options)
        self._made.append(made)
        return made

    def forget(self) -> list[WeightTransport]:
        """Return the ends made so far and hold them no longer: the check closes them itself."""
        made, self._made = self._made, []
        return made

    def peer(self, name: str) -> Peer:
        """Return another process with an end of its own, of the same options, its temporary folder the check's."""
        options = self.target.options()
        key = f"{name} {sorted(options.items())}"
        if key not in self._peers or not self._peers[key].alive:
            self._peers[key] = Peer(self.target.locator, PEER_S * self.target.adapter.patience, options)
        self._peers[key].settle(self.temporary)
        return self._peers[key]

    def within(self, work: Callable[[], T], what: str = "a call") -> T:
        """Run a call that may hang; raise a Violation of law 9 if it does.

        The thread of a hanging call is left behind: nothing can end it.
        """
        outcome: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="areal-conformance-call", daemon=True)
        thread.start()
        deadline = self.deadline(WAIT_S)
        while thread.is_alive() and (left := deadline.left()):
            thread.join(left)
        if thread.is_alive():
            told = f"{what} did not return within {deadline.limit_s:g} s: it neither succeeds nor fails"
            raise deadline.late(told, law=9)
        if errors:
            raise errors[0]
        return outcome[0]

    def becomes(self, true: Callable[[], bool]) -> bool:
        """Wait until something is true that another thread or process is about to do; tell whether it came."""
        deadline = self.deadline(SETTLE_S)
        while not true():
            if not deadline.left():
                return False
            time.sleep(LOOK_S)
        return True

    def travelled(self, offer: Offer) -> Offer:
        """Return the offer as another process gets it."""
        arrived: Offer = decode([bytes(frame) for frame in encode(offer)])
        return arrived

    def send(self, transport: WeightTransport, offer: Offer, tensors: Mapping[str, Tensor], **how: Any) -> Receipt:
        """Send as a train engine does. Any: `tied`, and `cut`, which makes other buckets of tensors and wanted size."""
        return self.within(partial(send, transport, self.travelled(offer), tensors, **how), "sending")

    def sent(
        self,
        controller: WeightTransport,
        tensors: Mapping[str, Tensor],
        *,
        version: int = 1,
        sender: WeightTransport | None = None,
    ) -> Offer:
        """Open a version and send it, from a new end where none is given; return its offer."""
        offer = controller.open(version)
        self.send(sender or self.transport(), offer, tensors)
        return offer

    def receive(self, transport: WeightTransport, offer: Offer) -> Received:
        """Receive as an inference engine does: copy every bucket before asking for the next."""
        return self.within(partial(receive, transport, self.travelled(offer)), "receiving")

    def carry(
        self,
        controller: WeightTransport,
        sender: WeightTransport,
        receivers: Sequence[WeightTransport],
        offer: Offer,
        tensors: Mapping[str, Tensor],
        **how: Any,
    ) -> tuple[Receipt, list[Received]]:
        """Send to receivers and return what each side has: one after the other, or at once if the transport streams.

        Any: as for `send`.
        """
        if not self.streams:
            receipt = self.send(sender, offer, tensors, **how)
            return receipt, [self.receive(receiver, offer) for receiver in receivers]
        sending = partial(send, sender, self.travelled(offer), tensors, **how)
        return self.stream(controller, offer, sending, receivers).all_well()

    def stream(
        self,
        controller: WeightTransport,
        offer: Offer,
        sending: Callable[[], Receipt],
        receivers: Sequence[WeightTransport],
        *,
        moment_s: float = 0.0,
    ) -> Streamed:
        """Run both sides of a stream in threads until all have ended; raise a Violation of law 9 if one does not.

        Receivers take `moment_s` over their first bucket before they copy it.
        """
        named = [f"receiver/{number}" for number in range(len(receivers))]
        offers = [self.travelled(own) for own in expecting(controller).expect(offer, named)]
        works: dict[str, Callable[[], Any]] = {"sender": sending}  # Any: a Receipt, or what was Received
        for name, end, own in zip(named, receivers, offers, strict=True):
            works[name] = partial(receive, end, own, moment_s=moment_s)
        return Streamed(ended=self.at_once(works))

    def at_once(self, works: Mapping[str, Callable[[], Any]], *, wait_s: float = WAIT_S) -> dict[str, Any]:
        """Run calls in threads; return each one's result or exception, in the order they ended. Any: of the calls."""
        ended: dict[str, Any] = {}

        def run(name: str, work: Callable[[], Any]) -> None:
            try:
                ended[name] = work()
            except BaseException as error:
                ended[name] = error

        threads = [
            threading.Thread(target=run, args=item, name=f"areal-conformance-{item[0]}", daemon=True)
            for item in works.items()
        ]
        for thread in threads:
            thread.start()
        deadline = self.deadline(wait_s)
        for thread in threads:
            while thread.is_alive() and (left := deadline.left()):
                thread.join(left)
        hanging = [name for name in works if name not in ended]
        if hanging:
            told = f"{', '.join(hanging)} neither succeeded nor failed within {deadline.limit_s:g} s"
            raise deadline.late(told, law=9)
        return ended

    def look(self) -> Footprint:
        """Return what this process holds now."""
        return look(self.temporary)

    def _restore(self) -> None:
        if self._kept is None:
            return
        variable, folder = self._kept
        self._kept = None
        tempfile.tempdir = folder
        if variable is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = variable
