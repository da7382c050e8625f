"""Tensors and words between the hosts of one replica: a JSON line, then bytes. Nothing is unpickled.

Both ends prove that they know the replica's secret before anything else.

Knows: frames, the proof, deadlines.
Does not know: what is computed.
"""

from __future__ import annotations

import json
import socket
import struct
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.errors import GenerationFailed

ANSWER_S = 60.0
"""The other end answers within this, or is lost."""
_SILENCE_S = 10
"""Within a proof, or a message."""


class Line:
    """One connection, whose other end has the same secret.

    Raises:
        OSError, EOFError, AuthenticationError: it has not, or does not prove it in time.
    """

    def __init__(self, taken: socket.socket, key: str, *, asks: bool) -> None:
        taken.settimeout(None)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _SILENCE_S, 0))
        self._connection = Connection(taken.detach())
        steps = (deliver_challenge, answer_challenge)
        try:
            for step in steps if asks else reversed(steps):
                step(self._connection, key.encode())
        except BaseException:
            self._connection.close()
            raise

    def heard(self, within_s: float = 0.0) -> bool:
        """Return whether something has come, the end of the line among it."""
        return self._connection.poll(within_s)

    def send(self, words: dict[str, Any], tensor: Tensor | None = None) -> None:
        """Send words, and a tensor with them. Any: JSON."""
        data = b""
        if tensor is not None:
            words = {**words, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        self._connection.send_bytes(json.dumps(words).encode() + b"\n" + data)

    def receive(self) -> tuple[dict[str, Any], Tensor | None]:
        """Return what came. Any: JSON.

        Raises:
            OSError, EOFError: the line ended.
        """
        head, _, data = self._connection.recv_bytes().partition(b"\n")
        words = json.loads(head)
        if "dtype" not in words:
            return words, None
        dtype = getattr(torch, words["dtype"])
        return words, torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(words["shape"])

    def asked(self, words: dict[str, Any], tensor: Tensor | None = None) -> tuple[dict[str, Any], Tensor | None]:
        """Return the answer to a question.

        Raises:
            GenerationFailed: the other end is lost, or could not answer.
        """
        try:
            self.send(words, tensor)
            if not self.heard(ANSWER_S):
                raise EOFError(f"no answer within {ANSWER_S:g} s")
            answer = self.receive()
        except (OSError, EOFError) as error:
            raise GenerationFailed(
                "another part of the replica is lost", why=f"{type(error).__name__}: {error}"
            ) from error
        if "problem" in answer[0]:
            raise GenerationFailed("another part of the replica failed", why=answer[0]["problem"])
        return answer

    def close(self) -> None:
        """End it."""
        self._connection.close()
