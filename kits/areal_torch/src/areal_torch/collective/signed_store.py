"""Keys in a store that strangers may reach: they cannot tell whose they are, and what they write is not believed.

torch's TCPStore lets everybody in who connects, to list, read, change and delete keys. Whoever shares a secret, which
the controller sends with the offer, finds keys under a prefix that is a hash of it, and signs what it writes.

Knows: which bytes were written under which key by one who has the secret.
Does not know: what is written, or by which of them. Values are not encrypted, and a stranger can delete them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

_SIGNATURE_BYTES = 16


class ForgedValue(RuntimeError):
    """What stands under a key was not written there by anybody who has the secret."""


class SignedStore(Store):
    """A store of torch's own kind, good for gloo; the secret is never written to it."""

    def __init__(self, store: Store, secret: str) -> None:
        super().__init__()
        self._store = store
        self._secret = secret.encode()
        self._prefix = hashlib.blake2b(self._secret, digest_size=16, person=b"areal-prefix").hexdigest()

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._store.set(self._name(key), self._signed(key, value))

    def get(self, key: str) -> bytes:
        """Wait for a value.

        Raises:
            ForgedValue: it was not written here by one who has the secret.
            torch.distributed.DistError: the wait was too long, or the store is gone.
        """
        return self._checked(key, self._store.get(self._name(key)))

    def compare_set(self, key: str, expected: str, value: str | bytes) -> bytes:
        """Write a value where nothing stands yet; return what stands there now. `expected` is "".

        Raises:
            ForgedValue: what stands there was not written by one who has the secret.
        """
        return self._checked(key, self._store.compare_set(self._name(key), expected, self._signed(key, value)))

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether something stands under all of these keys."""
        return bool(self._store.check([self._name(key) for key in keys]))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until something stands under all of these keys."""
        names = [self._name(key) for key in keys]
        if timeout is None:
            self._store.wait(names)
        else:
            self._store.wait(names, timeout)

    def delete_key(self, key: str) -> bool:
        """Delete a key; tell whether it was there."""
        return bool(self._store.delete_key(self._name(key)))

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _signature(self, key: str, value: bytes) -> bytes:
        told = len(key).to_bytes(4, "big") + key.encode() + value
        return hashlib.blake2b(told, key=self._secret, digest_size=_SIGNATURE_BYTES).digest().hex().encode()

    def _signed(self, key: str, value: str | bytes) -> Any:  # Any: bytes, which torch takes, and its stub does not
        plain = value.encode() if isinstance(value, str) else value
        return self._signature(key, plain) + plain

    def _checked(self, key: str, found: bytes) -> bytes:
        signature, plain = found[: 2 * _SIGNATURE_BYTES], found[2 * _SIGNATURE_BYTES :]
        if not hmac.compare_digest(signature, self._signature(key, plain)):
            raise ForgedValue(f"what stands under {key!r} in the store of the transfer was written by a stranger")
        return plain
