"""What the ends of one streamed transfer tell each other besides the bytes: a rendezvous of keys in the run's store.

    open       version           controller   until it is released
    receivers  worker ids        controller   who will come
    manifest   tensors, ties     sender
    ready/0..  ranks, device, .. receiver     it has read the manifest and takes part
    group      name, first ranks sender       everybody is there
    arrived/.. nothing           receiver     it has everything
    finished   nothing           sender       everybody has
    said/..    why it left       anyone       before the end

Knows: keys, waits and their bound, and how one end's leaving wakes everybody who waits.
Does not know: process groups or tensors. Values are JSON, signed with the ticket (`signed_store`), which is not in
the store; nothing is unpickled.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError

from areal_core.contract.errors import StorageError, WeightSyncError
from areal_core.contract.weights import Offer
from areal_torch.collective.addresses import local_address
from areal_torch.collective.chain import CLOSED
from areal_torch.collective.patience import give_up_after
from areal_torch.collective.signed_store import ForgedValue, SignedStore

_SENDER = "sender"
_SENDER_KEYS = ("manifest", "group", "finished")
_FAREWELL_S = 2.0
"""How long one who failed listens to what the others say, to name the one who says nothing."""
_CONNECT_S = 10.0
"""How long a connection is tried. The store is there before any offer of it; but torch looks up the name of every
address it connects to, and that may be slow."""
_RELEASED = -1
"""Stands under `open` from the release on. Were it gone instead, whoever just saw it would wait for it to come back."""
_KEPT_TICKETS = 4
"""Released tickets whose keys stay a little, for those who are just being woken by them."""


class Store:
    """The controller's end: serves the keys of every open offer on one socket."""

    def __init__(self, host: str, timeout_s: float) -> None:
        self._tickets: dict[str, tuple[SignedStore, int]] = {}
        self._released: deque[tuple[SignedStore, list[str]]] = deque()
        try:
            # The store itself would listen on every interface.
            listening = socket.create_server((host, 0))
        except OSError as error:
            raise StorageError(
                f"no socket could be opened on {host}",
                why=str(error),
                fix="set weight_sync.options.host to an address of the controller's machine",
            ) from error
        self.host, self.port = host, int(listening.getsockname()[1])
        self._store = TCPStore(
            host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
            master_listen_fd=listening.detach(),
        )

    def add(self, version: int) -> str:
        """Make the rendezvous of one offer; return its ticket, which nobody can guess."""
        ticket = secrets.token_hex(16)
        keys = SignedStore(self._store, ticket)
        self._tickets[ticket] = keys, 0
        keys.set("open", str(version))
        return ticket

    def expect(self, ticket: str, receivers: Sequence[str]) -> bool:
        """Tell who will come; return whether the offer is still open."""
        if ticket not in self._tickets:
            return False
        keys, _ = self._tickets[ticket]
        self._tickets[ticket] = keys, len(receivers)
        keys.set("receivers", json.dumps({"value": list(receivers)}))
        return True

    def remove(self, ticket: str) -> None:
        """Close a rendezvous: whoever waits at it is told. Idempotent."""
        if ticket not in self._tickets:
            return
        store, count = self._tickets.pop(ticket)
        store.set("open", str(_RELEASED))
        own = (f"{said}/{number}" for said in ("ready", "arrived") for number in range(count))
        keys = ["receivers", *_SENDER_KEYS, *own]
        for key in keys:
            with suppress(ForgedValue):  # whoever waits there is told that
                store.compare_set(key, "", json.dumps({"over": "the offer was released"}))
        self._released.append((store, ["open", *keys, *(f"said/{who}" for who in (_SENDER, *range(count)))]))
        if len(self._released) > _KEPT_TICKETS:
            old, gone = self._released.popleft()
            for key in gone:
                old.delete_key(key)


class Connections:
    """A process's idle connections to the store. A new one costs a name lookup at each side, which may be slow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int], list[TCPStore]] = {}

    def take(self, address: str, port: int, timeout_s: float) -> TCPStore:
        """Return a connection nobody else uses."""
        with self._lock:
            idle = self._idle.get((address, port), [])
            line = idle.pop() if idle else None
        if line is None:
            bound = timedelta(seconds=_CONNECT_S)
            line = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=bound)
            give_up_after(timeout_s, address, port)
        line.set_timeout(timedelta(seconds=timeout_s))
        return line

    def give(self, address: str, port: int, line: TCPStore) -> None:
        """Keep a connection that nothing went wrong on. Those to other stores go: a controller has one."""
        with self._lock:
            self._idle = {(address, port): [*self._idle.get((address, port), []), line]}

    def close(self) -> None:
        """Hang up. Idempotent."""
        with self._lock:
            self._idle = {}


class Rendezvous:
    """The rendezvous of one offer, as its sender or one of its receivers sees it.

    Raises:
        WeightSyncError: the controller cannot be reached, or the offer was released or is of another version.
    """

    def __init__(self, offer: Offer, connections: Connections) -> None:
        location = offer.location
        self.address, self.port = str(location["address"]), int(location["port"])
        self.timeout_s = int(location["timeout_ms"]) / 1000
        self.me = str(location.get("receiver", _SENDER))
        self.ticket, self._version = str(location["ticket"]), offer.version
        self._connections = connections
        with self._errors("reach the controller"):
            self.connection = connections.take(self.address, self.port, self.timeout_s)
        self.host = local_address(self.address, self.port)
        self.num_receivers = 0
        """Known once the group is told."""
        self._store = SignedStore(self.connection, self.ticket)
        self.check_open()

    def part(self) -> None:
        """Hand the connection back after a transfer that ended well; the last call."""
        self._connections.give(self.address, self.port, self.connection)

    def check_open(self) -> None:
        """Check that the offer was not released."""
        with self._errors("ask the controller"):
            # One way there and back; where nothing stands any more it was released long ago.
            found = int(self._store.compare_set("open", "", str(_RELEASED)))
        if found != self._version:
            raise WeightSyncError(
                f"version {self._version} cannot be streamed",
                why="the offer was released" if found == _RELEASED else f"the offer is of version {found}",
            )

    def post(self, key: str, value: Any) -> None:  # Any: JSON
        """Write a value nobody else writes.

        Raises:
            WeightSyncError: it was written already, or the transfer was given up.
        """
        text = json.dumps({"value": value, "by": secrets.token_hex(8)})
        with self._errors(f"post {key}"):
            kept = self._store.compare_set(key, "", text).decode()
        if kept != text:
            self._value(kept)
            raise WeightSyncError(
                f"{key} of version {self._version} was told twice", why="an offer is good for one sender and one source"
            )

    def read(self, key: str, who: str) -> Any:  # Any: JSON
        """Wait for a value that `who` writes.

        Raises:
            WeightSyncError: the transfer was given up, or the wait ended; names `who`.
        """
        with self._errors(f"hear from {who}"):
            text = self._store.get(key).decode()
        return self._value(text)

    def roll_call(self, names: Sequence[str], said: str) -> list[Any]:  # Any: JSON
        """Wait until every receiver has `said` that it is "ready", or that all has "arrived"; return their words.

        Raises:
            WeightSyncError: one left, which is named, or the wait ended; names all who did not come.
        """
        keys = [f"{said}/{number}" for number in range(len(names))]
        with suppress(DistError):
            self._store.wait(keys, timedelta(seconds=self.timeout_s))
        with self._errors("hear from the receivers"):
            here = [self._store.check([key]) for key in keys]
        missing = [name for name, came in zip(names, here, strict=True) if not came]
        if missing:
            raise WeightSyncError(
                f"version {self._version} cannot be streamed: {', '.join(missing)} did not come within "
                f"{self.timeout_s:g} s",
                why="it died, hangs, or was never called",
                fix="read the logs of the workers named; they and the controller must reach each other",
            )
        with self._errors("hear from the receivers"):
            return [self._value(self._store.get(key).decode(), names) for key in keys]

    def leave(self, why: str) -> None:
        """Say why before the end, and wake whoever waits for this end. Never raises."""
        over = json.dumps({"over": why, "by": self.me})
        # Who died says nothing any more, and whoever noticed says it for all.
        every = [f"arrived/{number}" for number in range(self.num_receivers)]
        keys = _SENDER_KEYS if self.me == _SENDER else (f"ready/{self.me}", *every)
        with suppress(DistError, RuntimeError):
            self._store.set(f"said/{self.me}", why)
            for key in keys:
                self._store.compare_set(key, "", over)

    def blame(self, names: Sequence[str]) -> str:
        """Tell who ended a transfer that broke: those who fell silent, or those who said more than that others left."""
        others = [_SENDER] if self.me != _SENDER else [str(number) for number in range(len(names))]
        keys = [f"said/{who}" for who in others]
        with suppress(DistError, RuntimeError):
            self._store.wait(keys, timedelta(seconds=min(_FAREWELL_S, self.timeout_s)))
        try:
            heard = {who: self._store.check([key]) for who, key in zip(others, keys, strict=True)}
            silent = [self._name(who, names) for who, said in heard.items() if not said]
            if silent and self.me != _SENDER:
                return "the sender says nothing"  # perhaps it only did not notice yet
            if silent:
                return f"{', '.join(silent)} died or hangs"
            told = [
                (self._name(who, names), self._store.get(key).decode()) for who, key in zip(others, keys, strict=True)
            ]
        except ForgedValue as error:
            return str(error)
        except (DistError, RuntimeError):
            return "the controller is gone"
        causes = [(name, why) for name, why in told if not why.endswith(CLOSED)] or told
        return "; ".join(f"{name}: {why}" for name, why in causes)

    def _name(self, who: str, names: Sequence[str] = ()) -> str:
        if who == _SENDER:
            return "the sender"
        return names[int(who)] if names else f"receiver {who}"

    def _value(self, text: str, names: Sequence[str] = ()) -> Any:
        told = json.loads(text)
        if "over" in told:
            why = f"{self._name(told['by'], names)} left: {told['over']}" if "by" in told else told["over"]
            raise WeightSyncError(f"the transfer of version {self._version} was given up", why=why)
        return told["value"]

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except ForgedValue as error:
            raise WeightSyncError(
                f"version {self._version} cannot be streamed: could not {what}",
                why=str(error),
                fix="on a machine with other users take weight_sync.transport shm or disk; between machines use a "
                "network only they reach",
            ) from error
        except (DistError, RuntimeError, ValueError) as error:
            late = "timeout" in str(error)
            raise WeightSyncError(
                f"version {self._version} cannot be streamed: could not {what}"
                + (f" within {self.timeout_s:g} s" if late else ""),
                why="nothing came: it died, hangs, or was never called" if late else str(error).splitlines()[0],
                fix="read the logs of the workers named; they and the controller must reach each other" if late else "",
            ) from error
