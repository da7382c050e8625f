"""How the ranks of one role agree on small facts, so that an error on one is an error on all.

Knows: json over tensors, in rank order. Nothing is pickled.
Does not know: gradients; those travel by the engine's own collectives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from attrs import frozen

from areal_core.contract import errors
from areal_core.contract.errors import ArealError

_INLINE = 4096
_HEADER = 8


class RankGroup(Protocol):
    """The ranks that share one model. Any: whatever json can hold."""

    @property
    def rank(self) -> int:
        """Return this rank's number."""

    @property
    def size(self) -> int:
        """Return how many ranks there are."""

    @property
    def data_ranks(self) -> Sequence[int]:
        """Return which shard of a batch each rank takes, in rank order; ranks may share one."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on every rank. Collective."""


@frozen
class SingleRank:
    """The group of one."""

    rank: int = 0
    size: int = 1
    data_ranks: Sequence[int] = (0,)

    def gather(self, value: Any) -> list[Any]:
        """Return the value alone."""
        return [value]


@frozen
class ProcessRanks:
    """The ranks of one role. `control` is a gloo group over all of them, so that agreements travel over the CPU."""

    rank: int
    size: int
    control: dist.ProcessGroup
    data_ranks: Sequence[int]

    def gather(self, value: Any) -> list[Any]:
        """Gather json; a rank that is alone asks nobody."""
        payload = json.dumps(value).encode()
        return [json.loads(block) for block in (self._exchanged(payload) if self.size > 1 else [payload])]

    def _exchanged(self, payload: bytes) -> list[bytes]:
        """Return every rank's bytes: one all-gather when all are under 4 KiB, two otherwise."""
        inline = self._all_gather(len(payload).to_bytes(_HEADER, "little") + payload[: _INLINE - _HEADER], _INLINE)
        lengths = [int.from_bytes(block[:_HEADER], "little") for block in inline]
        if max(lengths) <= _INLINE - _HEADER:
            blocks = [block[_HEADER:] for block in inline]
        else:
            blocks = self._all_gather(payload, max(lengths))
        return [block[:length] for block, length in zip(blocks, lengths, strict=True)]

    def _all_gather(self, payload: bytes, size: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(payload.ljust(size, b"\0")), dtype=torch.uint8)
        everyone = [torch.empty(size, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(everyone, mine, group=self.control)
        return [block.numpy().tobytes() for block in everyone]


def agree(group: RankGroup, local: Callable[[], Any]) -> list[Any]:
    """Run `local` on every rank and return all results in rank order; if any rank raised, every rank raises.

    The rank that raised re-raises its own error; the others raise the same class of ours,
    naming it. Called before collectives that a failing rank would leave the others waiting in.
    """
    error: Exception | None = None
    value: Any = None  # Any: json
    try:
        value = local()
    except Exception as raised:  # every error must reach the others before it is raised again below
        if group.size == 1:
            raise
        error = raised
    answers = group.gather({"value": value} if error is None else {"error": _describe(error)})
    if error is not None:
        raise error
    for rank, answer in enumerate(answers):
        if "error" in answer:
            raise _rebuild(rank, answer["error"])
    return [answer["value"] for answer in answers]


def _describe(error: Exception) -> dict[str, str]:
    if isinstance(error, ArealError):
        return {"kind": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}
    return {"kind": "TrainError", "what": f"{type(error).__name__}: {error}", "why": "", "fix": ""}


def _rebuild(rank: int, described: dict[str, str]) -> ArealError:
    kind = getattr(errors, described["kind"], errors.TrainError)
    error: ArealError = kind(f"rank {rank}: {described['what']}", why=described["why"], fix=described["fix"])
    return error
