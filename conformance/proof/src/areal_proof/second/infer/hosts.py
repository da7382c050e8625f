"""A replica over several hosts: the leader asks the others for their share of each product.

Knows: who waits for whom at the start, what the leader asks, who is lost.
Does not know: layers (`forward`), the bytes on the way (`wire`), or where weights come from (`engine`).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from typing import Any
from urllib.parse import urlsplit

import torch.nn.functional as F
from torch import Tensor

from areal_core.contract.errors import GenerationFailed, WorkerError
from areal_core.contract.inference import ReplicaPart
from areal_proof.second.infer.ranks import Cut, share
from areal_proof.second.infer.wire import Line

MEET_S = 120.0
"""How long parts wait for one another at the start."""
_LOOK_S = 0.05
_LOST = (OSError, EOFError, AuthenticationError)

WeightsOf = Callable[[int], Mapping[str, Tensor] | None]
"""Version -> the tensors this part has of it, None if it does not have it."""


def address_of(part: ReplicaPart) -> tuple[str, int]:
    """Return where the parts meet."""
    leader = urlsplit(part.leader)
    return str(leader.hostname), int(leader.port or 0)


class Leading:
    """The leader's end of the lines to all others. `meet` blocks; the rest is called in one thread after it."""

    def __init__(self, part: ReplicaPart) -> None:
        self.num_hosts = part.num_hosts
        self.version = 0
        """Of the weights that products are asked with."""
        self._part = part
        self._lines: dict[int, Line] = {}
        self._closed = False

    def meet(self) -> None:
        """Wait until every other part is here and has shown that it knows the secret; strangers are sent away.

        Raises:
            WorkerError: names those who did not come, or says that the leader was closed.
        """
        until = time.monotonic() + MEET_S
        wanted = set(range(1, self.num_hosts))
        with socket.create_server(address_of(self._part)) as door:
            door.settimeout(_LOOK_S)
            while wanted - {*self._lines} and not self._closed and time.monotonic() < until:
                with suppress(*_LOST):
                    self._admit(Line(door.accept()[0], self._part.key, asks=True))
        if self._closed or wanted - {*self._lines}:
            missing = ", ".join(map(str, sorted(wanted - {*self._lines})))
            self.close()
            raise WorkerError(f"parts {missing} of the replica did not come", why=f"waited at {self._part.leader}")

    def shares(self, x: Tensor, name: str) -> list[Tensor]:
        """Return the share of every other host in a product, in the order of ranks."""
        answers = [self._ask(rank, {"product": name, "version": self.version}, x)[1] for rank in sorted(self._lines)]
        return [answer for answer in answers if answer is not None]

    def whole(self, part: int, x: Tensor, name: str) -> Tensor:
        """Return a product that one other host computes."""
        found = self._ask(part, {"product": name, "version": self.version}, x)[1]
        assert found is not None, "who has the weights answers with a tensor"
        return found

    def hold(self, version: int) -> bool:
        """Return whether every other part has a version."""
        return all(self._ask(rank, {"holds": version})[0]["holds"] for rank in self._lines)

    def check(self) -> None:
        """Raise GenerationFailed if a part is lost: nobody speaks unasked."""
        for rank, line in list(self._lines.items()):
            if line.heard():
                raise GenerationFailed(f"part {rank} of the replica is lost", why="its line ended")

    def close(self) -> None:
        """End every line, or the wait for them. Idempotent."""
        self._closed = True
        while self._lines:
            self._lines.popitem()[1].close()

    def _admit(self, line: Line) -> None:
        line.send({"who": True})
        self._lines[int(line.receive()[0]["rank"])] = line

    def _ask(self, rank: int, words: dict[str, Any], x: Tensor | None = None) -> tuple[dict[str, Any], Tensor | None]:
        return self._lines[rank].asked(words, x)


class Following:
    """Another part: a thread that comes to the leader and answers it until either ends."""

    def __init__(self, part: ReplicaPart, cut: Cut, weights_of: WeightsOf) -> None:
        each = cut.ranks // part.num_hosts
        self._mine, self._cut = slice(part.rank * each, (part.rank + 1) * each), cut
        self._part, self._weights_of = part, weights_of
        self._closed, self._lost = False, ""
        self._thread = threading.Thread(target=self._run, name="areal-second-part", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise GenerationFailed if the leader is lost."""
        if self._lost:
            raise GenerationFailed(f"part {self._part.rank} of the replica has lost its leader", why=self._lost)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closed = True
        self._thread.join()

    def _run(self) -> None:
        try:
            line = self._come()
            if line is not None:
                self._answer(line)
        except Exception as error:  # whatever it was: `check` is the thread's only witness
            self._lost = f"{type(error).__name__}: {error}"

    def _come(self) -> Line | None:
        until = time.monotonic() + MEET_S
        while not self._closed:
            try:
                return Line(socket.create_connection(address_of(self._part), timeout=5), self._part.key, asks=False)
            except _LOST:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK_S)
        return None

    def _answer(self, line: Line) -> None:
        try:
            while not self._closed:
                if line.heard(_LOOK_S):
                    line.send(*self._told(*line.receive()))
        finally:
            line.close()

    def _told(self, words: dict[str, Any], x: Tensor | None) -> tuple[dict[str, Any], Tensor | None]:
        if "who" in words:
            return {"rank": self._part.rank}, None
        if "holds" in words:
            return {"holds": self._weights_of(words["holds"]) is not None}, None
        weights = self._weights_of(words["version"])
        if weights is None or x is None:
            return {"problem": f"part {self._part.rank} has no version {words['version']}"}, None
        weight = weights[f"{words['product']}.weight"]
        x = x.to(weight.device)
        if self._cut.stages > 1:
            return {}, F.linear(x, weight).cpu()
        return {}, share(x, weight, words["product"], self._mine, self._cut.ranks).cpu()
