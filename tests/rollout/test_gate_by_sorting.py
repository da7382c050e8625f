"""The gate counts; one that sorts every group at each question answers the same, over any history."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from tests.rollout.test_staleness import GateMachine, filled

from areal_core.rollout.staleness import DroppingGate, Flight, StalenessGate


class SortingGate(StalenessGate):
    """The rule of hand-over as `docs/explanation/staleness.md` words it, over all outstanding groups."""

    def _choose(self) -> list[Flight] | None:
        finished = [flight for flight in self._flights.values() if flight.oldest is not None]
        chosen = sorted(finished, key=lambda flight: (flight.admitted_at, flight.index))[: self.prompts_per_step]
        if len(chosen) < self.prompts_per_step:
            return None
        left = Counter(flight.admitted_at for flight in self._flights.values())
        left.subtract(flight.admitted_at for flight in chosen)
        for deadline in {admitted_at + self.max_staleness for admitted_at in left}:
            due = sum(count for admitted_at, count in left.items() if admitted_at + self.max_staleness <= deadline)
            if due > (deadline - self.version) * self.prompts_per_step:
                return None
        return chosen


class SortingDroppingGate(DroppingGate):
    """The policy `drop` over all finished groups."""

    def _drop_old(self) -> list[int]:
        finished = [flight.index for flight in self._flights.values() if flight.oldest is not None]
        dropped = [index for index in finished if self.staleness(index) > self.max_staleness]
        for index in dropped:
            del self._flights[index]
        return sorted(dropped)

    def _choose(self) -> list[Flight] | None:
        finished = [(flight.oldest, flight.index) for flight in self._flights.values() if flight.oldest is not None]
        chosen = [self._flights[index] for _, index in sorted(finished)[: self.prompts_per_step]]
        return chosen if len(chosen) == self.prompts_per_step else None


class Compared(StalenessGate):
    """A gate that asks another one whatever it is asked."""

    other_type: type[StalenessGate] = SortingGate

    def __init__(self, **settings: Any) -> None:  # Any: as for StalenessGate
        super().__init__(**settings)
        self.other = self.other_type(**settings)

    def room(self) -> int:
        return same(super().room(), self.other.room())

    def admit(self, index: int) -> None:
        super().admit(index)
        self.other.admit(index)

    def readmit(self, index: int, oldest: int | None) -> bool:
        at = self.version if oldest is None else oldest
        before = sum(flight.admitted_at <= at for flight in self._flights.values())
        in_time = self.room() > 0 and before < (at + self.max_staleness - self.version + 1) * self.prompts_per_step
        return same(super().readmit(index, oldest), self.other.readmit(index, oldest), in_time)

    def finish(self, index: int, oldest: int | None) -> bool:
        return same(super().finish(index, oldest), self.other.finish(index, oldest))

    def remove(self, index: int) -> None:
        super().remove(index)
        self.other.remove(index)

    def discard(self, num_groups: int) -> None:
        super().discard(num_groups)
        self.other.discard(num_groups)

    def take(self) -> list[int] | None:
        return same(super().take(), self.other.take())

    def advance(self, version: int) -> list[int]:
        return same(super().advance(version), self.other.advance(version))


class ComparedDropping(Compared, DroppingGate):
    """The same of the policy `drop`."""

    other_type = SortingDroppingGate


def same(*answers: Any) -> Any:  # Any: whatever gates answer
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0]


class ComparedMachine(GateMachine):
    gate_type = Compared


class ComparedDropMachine(GateMachine):
    gate_type = ComparedDropping


TestCompared = ComparedMachine.TestCase
TestCompared.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestComparedDrop = ComparedDropMachine.TestCase
TestComparedDrop.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("kind", [StalenessGate, DroppingGate])
def test_a_question_looks_at_no_group_that_is_not_handed_over(kind: type[StalenessGate]) -> None:
    """Of 8,000 groups in flight, those of the batch alone are looked at, and only once it is there."""

    class Counting(dict[int, Flight]):
        looks = 0

        def __getitem__(self, index: int) -> Flight:
            self.looks += 1
            return super().__getitem__(index)

        def values(self) -> Any:  # Any: never returned
            raise AssertionError("every group was looked at")

    gate = kind(prompts_per_step=1000, max_staleness=7, max_concurrent=8000)
    filled(gate)
    gate._flights = flights = Counting(gate._flights)
    for index in range(999):
        gate.finish(index, 0)
        assert gate.take() is None and not flights.looks
    gate.finish(999, 0)

    assert gate.take() == list(range(1000)) and flights.looks <= 2000
