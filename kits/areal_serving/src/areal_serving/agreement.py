"""Every rank of a server answers for itself; here their answers become one, or an error.

Knows: the answers of `proof.Proof`, in the order of ranks.
Does not know: how ranks are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from areal_core.contract.errors import FingerprintMismatch

_LOOK_S = (0.005, 0.25)
"""Between two questions for a proof: at first, and at most."""

States = Sequence[Mapping[str, Any]]  # Any: JSON


async def proved(ask: Callable[[], Awaitable[States]], engine: str) -> Mapping[str, str]:
    """Ask every rank for its proof of a staged folder until all are done; return what they agree on.

    Raises:
        FingerprintMismatch: a rank cannot read it, or two read different bytes.
    """
    wait, longest = _LOOK_S
    states = await ask()
    while not all(state["done"] for state in states):
        await asyncio.sleep(wait)
        wait, states = min(2 * wait, longest), await ask()
    for rank, state in enumerate(states):
        if state["problem"]:
            raise FingerprintMismatch(f"{engine} rank {rank} cannot read the staged weights", why=state["problem"])
    return agreed([state["fingerprints"] for state in states], engine)


def agreed(ranks: Sequence[Mapping[str, str]], engine: str) -> Mapping[str, str]:
    """Return the fingerprints all ranks give.

    Raises:
        FingerprintMismatch: two differ; names the first tensor.
    """
    first = ranks[0]
    for rank, other in enumerate(ranks[1:], start=1):
        wrong = sorted(name for name in first.keys() | other.keys() if other.get(name) != first.get(name))
        if wrong:
            raise FingerprintMismatch(
                f"{engine} ranks 0 and {rank} hold other bytes of {wrong[0]!r}", why=f"{len(wrong)} tensors differ"
            )
    return first
