"""How one part of the loop is put in the place of the core's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
from tests.benches.rollouts import RolloutParts

from areal_conformance.target import Target
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.fleet.replica import Replica, checked_generation
from areal_proof.mutants import mutant

from ..bench import LoopParts

Broken = TypeVar("Broken", bound=Callable[..., Any])


class Wrapped:
    """A replica of which something is otherwise."""

    def __init__(self, whole: Replica) -> None:
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


async def asked(replica: Replica, request: GenerationRequest, timeout_s: float) -> Generation:
    """Return what a replica answers, as the pool asks it, or raise what another one might do better."""
    ticket = replica.begin()
    try:
        answer = checked_generation(await replica.send(request, timeout_s), replica.id)
    except BaseException as error:
        raise replica.ended(ticket, error) or error from error.__cause__
    replica.ended(ticket)
    return answer


def broken(part: str, *killers: str, incident: str = "", row: str = "") -> Callable[[Broken], Broken]:
    """Mark a class that stands in for one part of the loop: a field of RolloutParts or of LoopParts."""

    def mark(cls: Broken) -> Broken:
        rollout = part in attrs.fields_dict(RolloutParts)
        parts = attrs.evolve(LoopParts(), **({"rollout": RolloutParts(**{part: cls})} if rollout else {part: cls}))

        def breaks(whole: Target) -> Target:
            return attrs.evolve(whole, adapter=attrs.evolve(whole.adapter, build=lambda _case: parts))

        marked: Broken = mutant("loop/areal", killers=killers, incident=incident, row=row, breaks=breaks)(cls)
        return marked

    return mark
