"""The machine of the rollout side: time passes, batches are taken, saved, killed and resumed, in any order.

Knows: operations, and what must hold after each: the bound, exactly once, nothing lost.
Does not know: how the loop keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field
from hypothesis import strategies as st

from areal_conformance.outcome import Violation, expect

from .bench import indices, oldest_token

if TYPE_CHECKING:
    from tests.benches.rollouts import RolloutBench

    from .bench import LoopBench

Operation = tuple[str, int]

OPERATIONS: st.SearchStrategy[list[Operation]] = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.just("step"), st.just(0)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 1)),
    ),
    min_size=6,
    max_size=18,
)
"""wait N virtual seconds, take and train one batch, save, crash and resume, kill one of two replicas."""


@define
class StalenessMachine:
    """Interprets operations on a fresh side; `trained` is what the saved or living run has trained on."""

    bench: LoopBench
    options: dict[str, Any]  # Any: arguments of the bench
    staleness: int
    left_out: frozenset[int] = frozenset()
    """Tasks that `accept` does not take."""
    trained: list[int] = field(factory=list)
    saved: tuple[dict[str, Any] | None, list[int], int] = (None, [], 0)  # Any: an executor's state
    version: int = 0

    async def run(self, operations: list[Operation]) -> None:
        """Interpret all operations, then train on until everything issued came through."""
        pending = list(operations)
        while pending:
            async with self.bench.rollouts(**self.options, state=self.saved[0]) as side:
                self.trained, self.version = list(self.saved[1]), self.saved[2]
                await self._live(side, pending)
        async with self.bench.rollouts(**self.options, state=self.saved[0]) as side:
            self.trained, self.version = list(self.saved[1]), self.saved[2]
            for _ in range(4):
                await self._step(side)
        self._check_nothing_lost()

    async def _live(self, side: RolloutBench, pending: list[Operation]) -> None:
        """Interpret operations until a crash or the end."""
        killed = False
        while pending:
            what, number = pending.pop(0)
            if what == "wait":
                await side.clock.advance(number)
            elif what == "step":
                await self._step(side)
            elif what == "save":
                self.saved = (side.executor.state(), list(self.trained), self.version)
            elif what == "kill" and not killed:
                killed = True
                side.workers[number].die()
            elif what == "crash":
                return

    async def _step(self, side: RolloutBench) -> None:
        groups = await side.step()
        for group in groups:
            age = self.version - oldest_token(group)
            expect(
                0 <= age <= self.staleness, f"a group {age} versions old was consumed, the bound is {self.staleness}"
            )
        batch = indices(groups)
        again = set(batch) & set(self.trained)
        expect(not again, f"tasks {sorted(again)} were trained on twice")
        expect(not self.left_out & set(batch), f"of the batch {batch} some were left out")
        self.trained += batch
        self.version += 1

    def _check_nothing_lost(self) -> None:
        slack = self.staleness * self.options["prompts"]
        missing = sorted(set(range(max(self.trained) + 1 - slack)) - set(self.trained) - self.left_out)
        if missing:
            raise Violation(f"tasks {missing} were never trained on, later ones were: {sorted(self.trained)}")
