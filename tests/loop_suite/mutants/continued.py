"""Broken loops: answers in parts that are not put together, and adapters whose words count as the policy's.

Knows: how one part of the loop is put in the place of the core's own.
Does not know: how it is caught.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from attrs import evolve

from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.fleet.pool import Failures, InferencePool
from areal_core.fleet.replica import Replica
from areal_core.rollout.session import PoolSession, PoolSessions

from .part import Wrapped, broken


@broken("pool", "loop.pool.in_parts", row="token-fidelity")
class ColumnsOfWholeAnswersOnly(InferencePool):
    """Leaves out what engines told of the tokens of an answer whose versions differ."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        made = await super().generate(request, affinity=affinity)
        return made if len(made.version_spans) == 1 else evolve(made, token_extras={})


@broken("pool", "loop.pool.budget")
class GoesOnWhenItIsWhole(InferencePool):
    """Goes on with an interrupted request that has all the tokens it may have."""

    async def generate(self, request: GenerationRequest, *, affinity: Sequence[str] = ()) -> Generation:
        more = evolve(request.sampling, max_new_tokens=request.sampling.max_new_tokens + 1)
        return await super().generate(evolve(request, sampling=more), affinity=affinity)


class _Forgetful(Wrapped):
    """A replica that is told less of a request that goes on."""

    def __init__(self, whole: Replica, **less: Any) -> None:
        super().__init__(whole)
        self._less = less

    def send(self, request: GenerationRequest, timeout_s: float) -> Awaitable[object]:
        return self._whole.send(evolve(request, **self._less) if request.num_prior else request, timeout_s)


@broken("pool", "loop.pool.goes_on")
class GoesOnFree(InferencePool):
    """Leaves the structure of a request out where it goes on: half of an answer is json."""

    async def _next(self, affinity: Sequence[str], failed: Failures) -> Any:
        return _Forgetful(await super()._next(affinity, failed), structure=None)


@broken("pool", "loop.pool.goes_on")
class GoesOnAsThePolicy(InferencePool):
    """Asks the policy for the rest of what an adapter began."""

    async def _next(self, affinity: Sequence[str], failed: Failures) -> Any:
        return _Forgetful(await super()._next(affinity, failed), adapter="")


class _Stamped(PoolSession):
    """Stamps everything with a version of the policy."""

    __slots__ = ()

    async def generate(self, input_ids: Sequence[int], sampling: SamplingParams | None = None, **more: Any) -> Any:
        made = await super().generate(input_ids, sampling, **more)
        spans = [evolve(span, version=max(0, span.version)) for span in made.version_spans]
        return evolve(made, version_spans=spans)


@broken("sessions", "loop.session.adapters_apart")
class AdaptersAreThePolicy(PoolSessions):
    """Takes what an adapter says for the words of the policy."""

    def open(self, **given: Any) -> PoolSession:
        made = super().open(**given)
        made.__class__ = _Stamped
        return made
