"""Law 2, on the gate alone: staleness is bounded, nothing is lost, nothing waits for ever."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from areal_core.contract.errors import RolloutError, StalenessViolation
from areal_core.rollout.staleness import Buffer, DroppingGate, StalenessGate


def filled(gate: StalenessGate, first: int = 0) -> list[int]:
    """Admit from index `first` on as long as there is room; return what was admitted."""
    admitted = []
    while gate.room() > 0:
        gate.admit(first + len(admitted))
        admitted.append(first + len(admitted))
    return list(range(first, first + len(admitted)))


class GateMachine(RuleBasedStateMachine):
    """Any order of finishing, rejecting, failing and training, at any pace, against the real gate and buffer."""

    gate_type: type[StalenessGate] = StalenessGate

    @initialize(
        prompts=st.integers(1, 4),
        bound=st.integers(0, 3),
        concurrent=st.integers(0, 6),
        version=st.integers(0, 5),
        kept=st.lists(st.integers(0, 5), max_size=20),
    )
    def begin(self, prompts: int, bound: int, concurrent: int, version: int, kept: list[int]) -> None:
        """Start anew, or resume with groups whose oldest tokens are of the versions `kept`."""
        self.gate = self.gate_type(
            prompts_per_step=prompts, max_staleness=bound, max_concurrent=concurrent, version=version
        )
        self.buffer: Buffer[int] = Buffer(self.gate.max_concurrent + self.gate.capacity)
        self.next_index = 0
        self.running: dict[int, int] = {}
        self.finished: dict[int, int] = {}
        self.admitted_at: dict[int, int] = {}
        self.consumed: list[int] = []
        self.removed: list[int] = []
        self.again: list[int] = []
        self.took, self.resumed = False, bool(kept)
        for oldest in sorted(old for old in kept if old <= version):
            if self.gate.readmit(self.next_index, oldest):
                self.buffer.put(self.next_index, oldest)
                self.finished[self.next_index] = self.admitted_at[self.next_index] = oldest
            else:
                self.again.append(self.next_index)
            self.next_index += 1

    @rule()
    def fill(self) -> None:
        while self.gate.room() > 0:
            index = self.again.pop(0) if self.again else self.next_index
            self.next_index += index == self.next_index
            self.gate.admit(index)
            self.running[index] = self.admitted_at[index] = self.gate.version

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.running)))
        oldest = data.draw(st.integers(self.running.pop(index), self.gate.version))
        if self.gate.finish(index, oldest):
            self.buffer.put(index, oldest)
            self.finished[index] = oldest
        else:
            assert issubclass(self.gate_type, DroppingGate)
            self.again.append(index)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def reject_or_fail(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[index]
        self.gate.remove(index)
        self.removed.append(index)

    @precondition(lambda self: not self.took)
    @rule(left_out=st.sampled_from([False, False, True]))
    def train(self, left_out: bool) -> None:
        """Train on a batch, or find that all of it is left out, so that others get its places."""
        batch = self.gate.take()
        if batch is None:
            return
        assert len(batch) == self.gate.prompts_per_step
        assert batch == sorted(batch)
        for index, oldest in zip(batch, self.buffer.take(batch), strict=True):
            assert self.gate.version - oldest <= self.gate.max_staleness
            del self.finished[index]
        if left_out:
            self.gate.discard(len(batch))
            self.removed += batch
            return
        self.consumed += batch
        self.took = True

    @precondition(lambda self: self.took)
    @rule()
    def advance(self) -> None:
        for index in self.gate.advance(self.gate.version + 1):
            assert issubclass(self.gate_type, DroppingGate)
            self.buffer.take((index,))
            del self.finished[index]
            self.again.append(index)
        self.took = False

    @invariant()
    def every_group_is_somewhere_exactly_once(self) -> None:
        places = Counter([*self.running, *self.finished, *self.consumed, *self.removed, *self.again])
        assert places == Counter(range(self.next_index))
        assert len(self.buffer) == len(self.finished) == self.gate.num_finished
        assert len(self.running) == self.gate.num_running <= self.gate.max_concurrent

    @invariant()
    def the_next_batch_can_always_be_completed(self) -> None:
        gate = copy.deepcopy(self.gate)
        running, index = list(self.running), 10_000
        if self.took:
            gate.advance(gate.version + 1)
        for _ in range(100):
            for done in running:
                gate.finish(done, None)
            if gate.take() is not None:
                return
            running = filled(gate, index)
            index += 1_000
        raise AssertionError("whatever finishes, no batch comes out")


class WaitMachine(GateMachine):
    """The policy wait has two laws more."""

    @invariant()
    def every_group_still_waiting_is_in_time(self) -> None:
        for index in (*self.running, *self.finished):
            assert self.gate.version <= self.admitted_at[index] + self.gate.max_staleness - self.took

    @invariant()
    def a_bound_of_zero_trains_in_task_order(self) -> None:
        if self.gate.max_staleness == 0 and not self.resumed:
            assert self.consumed == sorted(self.consumed)


class DropMachine(GateMachine):
    """The policy drop."""

    gate_type = DroppingGate


TestWait = WaitMachine.TestCase
TestWait.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestDrop = DropMachine.TestCase
TestDrop.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


def test_a_young_group_does_not_overtake_when_an_old_one_would_miss_its_batch() -> None:
    """Waiting only for groups due now is not enough: two of the deadline k cannot both be in a batch of one."""
    gate = StalenessGate(prompts_per_step=1, max_staleness=2)
    assert filled(gate) == [0, 1, 2]
    gate.finish(0, 0)
    assert gate.take() == [0]
    gate.advance(1)
    assert filled(gate, 3) == [3]
    gate.finish(3, 1)

    assert gate.take() is None, "groups 1 and 2 are both due at version 2, one of them must go now"
    gate.finish(1, 0)
    assert gate.take() == [1]


def test_a_straggler_is_overtaken_as_long_as_it_stays_in_time() -> None:
    """Groups with time left do not hold finished ones up."""
    gate = StalenessGate(prompts_per_step=1, max_staleness=2)
    filled(gate)
    gate.finish(2, 0)

    assert gate.take() == [2]


def test_rejected_groups_are_replaced_within_the_same_version() -> None:
    """A removed group frees its place; with bound 0 the batch is the shortest prefix with enough left."""
    gate = StalenessGate(prompts_per_step=3, max_staleness=0)
    assert filled(gate) == [0, 1, 2]
    gate.remove(1)
    assert filled(gate, 3) == [3]
    for index in (3, 2, 0):
        gate.finish(index, 0)

    assert gate.take() == [0, 2, 3]


def test_a_batch_that_is_left_out_is_made_anew_within_the_same_version() -> None:
    """Its places go to as many others, which have a version's time as any group has."""
    gate = StalenessGate(prompts_per_step=2, max_staleness=0)
    for index in filled(gate):
        gate.finish(index, 0)
    gate.discard(len(gate.take() or ()))

    assert filled(gate, 2) == [2, 3]
    for index in (3, 2):
        gate.finish(index, 0)
    assert gate.take() == [2, 3] and gate.room() == 0


def test_concurrency_counts_running_groups_only() -> None:
    """Finished groups in the buffer do not take the place of running ones."""
    gate = StalenessGate(prompts_per_step=2, max_staleness=1, max_concurrent=1)
    assert filled(gate) == [0]
    gate.finish(0, 0)

    assert gate.room() == 1


def test_tokens_older_than_the_bound_are_an_error_never_trained_on() -> None:
    """An engine that stamps older versions than it should is found at hand-over."""
    gate = StalenessGate(prompts_per_step=1, max_staleness=1, version=5)
    filled(gate)
    gate.finish(0, 3)

    with pytest.raises(StalenessViolation, match="group 0 is 2 versions old at version 5, the bound is 1"):
        gate.take()


def test_every_version_trains_exactly_one_batch() -> None:
    """Taking twice, or moving on without taking, is refused with the reason."""
    gate = StalenessGate(prompts_per_step=1, max_staleness=1)
    filled(gate)
    with pytest.raises(RolloutError, match="was not handed over"):
        gate.advance(1)
    gate.finish(0, 0)
    assert gate.take() == [0]

    with pytest.raises(RolloutError, match="handed over already"):
        gate.take()
    with pytest.raises(RolloutError, match="from version 0 to 2"):
        gate.advance(2)


def test_dropping_counts_from_the_oldest_token_not_from_the_admission() -> None:
    """A group that waited long before it began is kept while its tokens are young, and is handed over after older."""
    gate = DroppingGate(prompts_per_step=1, max_staleness=1, max_concurrent=4)
    for index in (0, 1):
        gate.admit(index)
    for version in (1, 2, 3):
        gate.advance(version)
    assert gate.finish(0, 3)
    assert gate.finish(1, 2)
    assert gate.take() == [1]
    assert gate.advance(4) == []
    assert gate.take() == [0]


def test_dropping_forgets_what_became_too_old() -> None:
    """Under drop a finished group leaves when the version moves past its bound, a running one when it finishes."""
    gate = DroppingGate(prompts_per_step=1, max_staleness=1, max_concurrent=4)
    filled(gate)
    for index in (0, 1, 2):
        gate.finish(index, 0)
    assert gate.take() == [0]
    assert gate.advance(1) == []
    assert gate.take() == [1]

    assert gate.advance(2) == [2]
    assert gate.finish(3, 0) is False
    assert (gate.num_running, gate.num_finished) == (0, 0)
