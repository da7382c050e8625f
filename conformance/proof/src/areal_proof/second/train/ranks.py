"""The ranks of one trainer: who shares data, who shares layers, and how they agree.

Knows: torch.distributed over gloo, loopback rendezvous, json in tensors.
Does not know: models, batches, files.

Rank r is tensor coordinate r % t of data rank r // t.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from math import prod
from typing import Any
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from attrs import field, frozen
from torch import Tensor

from areal_core.contract import errors
from areal_core.contract.errors import ArealError, LayoutError, ResourceError, TrainError
from areal_core.contract.train import RankContext

_LEAVE = timedelta(seconds=10)


@frozen(kw_only=True)
class Ranks:
    """Where this rank stands. `tensor_group` is None where nobody shares its layers."""

    rank: int = 0
    size: int = 1
    tensor_size: int = 1
    tensor_group: dist.ProcessGroup | None = field(default=None, repr=False)

    @property
    def data_rank(self) -> int:
        """Return which shard of a batch is this rank's."""
        return self.rank // self.tensor_size

    @property
    def data_size(self) -> int:
        """Return how many shards a batch has."""
        return self.size // self.tensor_size

    @property
    def tensor_rank(self) -> int:
        """Return which share of every layer is this rank's."""
        return self.rank % self.tensor_size

    def share(self, count: int) -> slice:
        """Return this rank's share of `count` rows, heads or columns of a layer."""
        each = count // self.tensor_size
        return slice(self.tensor_rank * each, (self.tensor_rank + 1) * each)

    def layer_sum(self, part: Tensor) -> Tensor:
        """Add the parts the ranks of one data rank computed; differentiable."""
        return part if self.tensor_group is None else _LayerSum.apply(part, self.tensor_group)  # type: ignore[no-untyped-call]

    def add_up(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the sums over all ranks, the same bits on every rank. Collective."""
        if self.size == 1:
            return tensors
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _named(self, "adding gradients"):
            dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def agree(self, work: Callable[[], Any]) -> list[Any]:  # Any: whatever json can hold
        """Run `work` everywhere; return every result in rank order, or raise everywhere. Collective."""
        if self.size == 1:
            return [work()]
        failure: Exception | None = None
        answer: dict[str, Any] = {}
        try:
            answer["value"] = work()
        except Exception as error:  # the others learn of it before it is raised again
            failure, answer = error, _described(error)
        answers = self._gather(answer)
        if failure is not None:
            raise failure
        for rank, other in enumerate(answers):
            if "kind" in other:
                kind = getattr(errors, other["kind"], TrainError)
                raise kind(f"on rank {rank}: {other['what']}", why=other["why"], fix=other["fix"])
        return [other["value"] for other in answers]

    def _gather(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with _named(self, "agreeing"):
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(text)]))
            longest = max(int(size) for size in sizes)
            texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))))
        return [json.loads(bytes(text[: int(size)].tolist())) for text, size in zip(texts, sizes, strict=True)]

    def leave(self) -> None:
        """Leave the process group, together with the others where they still answer."""
        if self.size > 1:
            with contextlib.suppress(RuntimeError):  # a peer is gone; who started it tells
                dist.monitored_barrier(timeout=_LEAVE)
            dist.destroy_process_group()


class _LayerSum(torch.autograd.Function):
    """y = sum over ranks of x. All ranks' losses are one program's, so the adjoint is the same sum of gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_reduced(part, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_reduced(grad, ctx.group), None


def _all_reduced(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def degrees(layout: Mapping[str, int], world_size: int) -> int:
    """Return the tensor degree of a layout of data and tensor parallelism.

    Raises:
        LayoutError: another kind of parallelism, or another number of ranks.
    """
    for letter, degree in layout.items():
        if degree != 1 and letter not in "dt":
            raise LayoutError(
                f"the second trainer splits over d and t, got {letter}{degree}",
                why="every other kind of parallelism is left out",
                fix=f"leave {letter} out of the layout, or take another backend",
            )
    if layout and prod(layout.get(letter, 1) for letter in "dt") != world_size:
        raise LayoutError(
            f"the layout {dict(layout)} does not make {world_size} ranks",
            why="d times t is the number of ranks",
            fix="start one rank per part",
        )
    return layout.get("t", 1)


def join(context: RankContext, tensor_size: int) -> Ranks:
    """Meet the other ranks.

    Raises:
        ResourceError: they did not come in time, or the address is taken.
    """
    if context.world_size == 1:
        return Ranks()
    timeout = timedelta(seconds=context.timeout_s)
    try:
        meeting = _meeting(context, timeout)
        dist.init_process_group("gloo", **meeting, rank=context.rank, world_size=context.world_size, timeout=timeout)
    except (RuntimeError, OSError) as error:
        raise ResourceError(
            f"rank {context.rank} of {context.world_size} did not meet the others at {context.init_method}",
            why=str(error).partition("\n")[0],
            fix="start every rank, with the same address, and a free port",
        ) from error
    mine: dist.ProcessGroup | None = None
    for first in range(0, context.world_size, tensor_size) if tensor_size > 1 else ():
        members = list(range(first, first + tensor_size))
        group = dist.new_group(members, timeout=timeout)
        mine = group if context.rank in members else mine
    return Ranks(rank=context.rank, size=context.world_size, tensor_size=tensor_size, tensor_group=mine)


def _meeting(context: RankContext, timeout: timedelta) -> dict[str, Any]:  # Any: keywords of torch
    """Return how to meet; the store is made here because torch's own would listen on every interface."""
    address = urlparse(context.init_method)
    if address.scheme != "tcp" or address.hostname is None or address.port is None:
        return {"init_method": context.init_method}
    descriptor = None
    if context.rank == 0:
        family = socket.AF_INET6 if ":" in address.hostname else socket.AF_INET
        descriptor = socket.create_server((address.hostname, address.port), family=family).detach()
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, not in torch's __all__
        address.hostname,
        address.port,
        context.world_size,
        is_master=context.rank == 0,
        timeout=timeout,
        master_listen_fd=descriptor,
    )
    return {"store": store}


@contextlib.contextmanager
def _named(ranks: Ranks, doing: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise TrainError(
            f"rank {ranks.rank} of {ranks.size} lost another rank while {doing}",
            why=str(error).partition("\n")[0],
            fix="look at the logs of the other ranks: one ended, or is not taking part",
        ) from error


def _described(error: Exception) -> dict[str, str]:
    if isinstance(error, ArealError):
        return {"kind": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}
    return {"kind": "TrainError", "what": f"{type(error).__name__}: {error}", "why": "", "fix": ""}
