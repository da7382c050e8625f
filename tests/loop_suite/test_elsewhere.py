"""The laws of the loop hold where its episodes are made in rollout processes: every check of its rollout side again."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest
from tests.benches.elsewhere import Elsewhere
from tests.benches.rollouts import RolloutParts

from areal_conformance.adapter import Adapter
from areal_conformance.outcome import Outcome
from areal_conformance.session import Session
from areal_rollouts.process import Process
from areal_rollouts.runner import ProcessRunner

from .bench import LoopBench, LoopParts
from .target import CHECKS, LOOP

NOT_OF_EPISODES = (
    *("loop.checkpoint.", "loop.folder.", "loop.turns.", "loop.update."),
    *("loop.pool.in_parts", "loop.pool.budget", "loop.pool.goes_on"),
)
"""Checks of other parts of the loop: no episode is made in them."""


def _keys() -> list[str]:
    return [key for key in CHECKS if not key.startswith(NOT_OF_EPISODES)]


def _outcome(key: str, runner: type[ProcessRunner] = ProcessRunner) -> tuple[Outcome, str, int]:
    """Return how a check ends over two processes, what it says, and how many episodes they were asked for."""
    sides: list[Elsewhere] = []

    def executor(**given: Any) -> Any:  # Any: as a RolloutExecutor takes them
        sides.append(Elsewhere(2, runner=runner))
        return sides[-1].executor(**given)

    def build(_case: object) -> LoopParts:
        return LoopParts(rollout=RolloutParts(executor=executor))

    target = attrs.evolve(LOOP, adapter=Adapter(build=build))
    running = Session(target, lambda _role, target: LoopBench(target))
    try:
        result = running.run(CHECKS[key])
    finally:
        running.close()
    return result.outcome, result.message, sum(side.num_asked for side in sides)


@pytest.mark.parametrize("key", _keys())
def test_a_loop_over_processes_passes(key: str) -> None:
    """Two processes, the bytes of every message between them and the gate."""
    outcome, message, num_asked = _outcome(key)

    assert outcome is Outcome.PASS, message
    assert num_asked


class _StopsNothing(ProcessRunner):
    """Forgets to tell a process that an episode is no longer wanted."""

    async def _make(self, process: Process, *given: Any) -> Any:
        call = asyncio.ensure_future(super()._make(process, *given))
        return await asyncio.shield(call)


class _AsksTwice(ProcessRunner):
    """Has each episode made twice, and takes the second."""

    async def _make(self, process: Process, *given: Any) -> Any:
        await super()._make(process, *given)
        return await super()._make(process, *given)


class _MakesFailuresRejections(ProcessRunner):
    """Takes an error of a process for a row that was rejected."""

    async def _make(self, *given: Any) -> Any:
        made = await super()._make(*given)
        return attrs.evolve(made, outcome=None) if isinstance(made.outcome, Exception) else made


@pytest.mark.parametrize(
    ("broken", "key"),
    [
        (_StopsNothing, "loop.cancel.siblings"),
        (_AsksTwice, "loop.session.whole"),
        (_MakesFailuresRejections, "loop.failures.typed"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_runner_is_found(broken: type[ProcessRunner], key: str) -> None:
    """Checks that passed over processes by not looking would prove nothing."""
    outcome, _, _ = _outcome(key, broken)

    assert outcome is Outcome.FAIL
