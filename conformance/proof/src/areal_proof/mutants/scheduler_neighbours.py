"""Schedulers that are bad neighbours: they tidy away what a living run has, let others in, or serve the first few.

Knows: how the local scheduler is bent where it makes its folder of sockets, and its workers' handles.
Does not know: how it is caught.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_local.scheduler.local_scheduler import LocalScheduler
from areal_local.scheduler.rpc import RpcClient
from areal_proof.mutants.rows import Original, breaking, row, then

breaks = breaking("scheduler/local", LocalScheduler)
_made: set[str] = set()
"""Folders of this process's schedulers."""


@breaks("folder", "scheduler.company.two_runs")
def TidiesTheLiving(original: Original) -> Any:
    """Removes the sockets of the schedulers before it, whether those are at work or not."""
    own = original()
    for other in _made - {own}:
        shutil.rmtree(other, ignore_errors=True)
        _made.discard(other)
    if own is not None:
        _made.add(own)
    return own


class _Few(RpcClient):
    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        if self.num_in_flight >= 64:
            await asyncio.Event().wait()
        return await super().call(method, *args, timeout_s=timeout_s)


def _few_at_once(result: Sequence[Any]) -> None:
    for worker in result:
        worker.__class__ = _Few


NEIGHBOUR_ROWS = breaks.rows(
    row("SocketsForEverybody", "Lets everybody into the folder of its sockets.", "scheduler.access.other_users",
        folder=then(lambda result: None if result is None else Path(result).chmod(0o777))),
    row("SixtyFourAtOnce", "Leaves calls beyond 64 at once where they are.", "scheduler.calls.burst",
        submit=then(_few_at_once)),
)  # fmt: skip
