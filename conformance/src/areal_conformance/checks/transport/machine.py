"""Any order of calls on several offers, against a model that is a dictionary.

Knows: the state an offer is in, and what may be read in it.
Does not know: how bytes travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import Factory, define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_tensors import plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, unreadable
from areal_conformance.machines.examples import STEADY
from areal_conformance.outcome import Violation
from areal_core.contract.errors import ArealError
from areal_core.contract.weights import Offer
from areal_core.weights.tensors import manifest_of

_STEPS = 24
_EXAMPLES = 40
Step = Callable[..., None]


@define
class _Life:
    """One offer: what was sent to it so far, by a sink that may be ended."""

    offer: Offer
    seed: int
    sink: Any = None  # Any: the transport's own class
    written: set[str] = Factory(set)
    state: str = "open"

    @property
    def whole(self) -> bool:
        """Whether every announced tensor was written."""
        return self.written == plain(self.seed).keys()


@check("transport.machine", level=Level.SINGLE, law=7, spec="weights", unless=("streams",), deadline_s=120.0)
def machine(bench: TransportBench) -> None:
    """In any order of open, write, finish, abort, release and read an offer gives its own bytes or an error."""
    limits = settings(max_examples=_EXAMPLES, stateful_step_count=_STEPS, report_multiple_bugs=False, **STEADY)
    run_state_machine_as_test(lambda: Machine(bench), settings=limits)  # type: ignore[arg-type]


def _step(*states: str, **drawn: Any) -> Callable[[Step], Step]:
    """Mark a step on an offer in one of these states, or in any. Any: strategies of all types."""
    possible: Any = precondition(lambda machine: machine.those(*states))  # Any: hypothesis has no types for it
    drawing: Any = rule(number=st.integers(0, 5), **drawn)
    return lambda step: possible(drawing(step))


class Machine(RuleBasedStateMachine):
    """Fresh ends of the transport, and what becomes of the offers between them."""

    def __init__(self, bench: TransportBench) -> None:
        super().__init__()
        self.bench = bench
        self.controller, self.sender, self.receiver = (bench.transport(small_buckets=True) for _ in range(3))
        self.lives: list[_Life] = []

    def those(self, *states: str) -> list[_Life]:
        """Return the offers in these states, or all."""
        return [life for life in self.lives if not states or life.state in states]

    def pick(self, number: int, *states: str) -> _Life:
        """Return one of them."""
        found = self.those(*states)
        return found[number % len(found)]

    @precondition(lambda self: len(self.lives) - len(self.those("gone")) < 4)
    @rule(version=st.integers(1, 3), parts=st.integers(0, 4))
    def open(self, version: int, parts: int) -> None:
        offer = self.bench.travelled(self.controller.open(version))
        self.lives.append(_Life(offer=offer, seed=len(self.lives) + 1))
        if parts:
            self.put(self.lives[-1], parts)

    @_step("open", "begun", parts=st.integers(1, 4))
    def write(self, number: int, parts: int) -> None:
        self.put(self.pick(number, "open", "begun"), parts)

    def put(self, life: _Life, parts: int) -> None:
        tensors = plain(life.seed)
        if life.sink is None:
            life.sink, life.state = self.sender.sink(life.offer), "begun"
            life.sink.begin(manifest_of(tensors.items(), version=life.offer.version))
        names = [name for name in tensors if name not in life.written][:parts]
        life.sink.write({name: tensors[name] for name in names})
        life.written |= set(names)

    @precondition(lambda self: any(life.whole for life in self.those("begun")))
    @rule(number=st.integers(0, 5))
    def finish_whole(self, number: int) -> None:
        whole = [life for life in self.those("begun") if life.whole]
        life = whole[number % len(whole)]
        life.sink.finish()
        life.state = "finished"
        self.judge(life)

    @_step("begun")
    def finish(self, number: int) -> None:
        life = self.pick(number, "begun")
        try:
            life.sink.finish()
        except ArealError:
            if life.whole:
                raise
            life.state = "lost"
            life.sink.abort()
            return
        if not life.whole:
            raise Violation(f"finish took {len(life.written)} of {len(plain(life.seed))} announced tensors")
        life.state = "finished"

    @_step("begun")
    def abort(self, number: int) -> None:
        life = self.pick(number, "begun")
        life.sink.abort()
        life.state = "lost"

    @_step()
    def release(self, number: int) -> None:
        life = self.pick(number)
        self.controller.release(life.offer)
        life.state = "gone" if life.state != "begun" else "given up"

    @_step("given up")
    def late(self, number: int) -> None:
        life = self.pick(number, "given up")
        life.state = "gone"
        try:
            life.sink.write({n: t for n, t in plain(life.seed).items() if n not in life.written})
            life.sink.finish()
        except ArealError:
            life.sink.abort()

    @_step()
    def read(self, number: int) -> None:
        self.judge(self.pick(number))

    @rule()
    def receiver_closes(self) -> None:
        self.receiver.close()
        self.receiver = self.bench.transport(small_buckets=True)

    def judge(self, life: _Life) -> None:
        if life.state == "finished":
            same(plain(life.seed), self.bench.receive(self.receiver, life.offer), f"offer {life.seed}")
        else:
            unreadable(self.bench, self.receiver, life.offer, f"offer {life.seed}, {life.state}")

    def teardown(self) -> None:
        try:
            for life in self.lives:
                self.judge(life)
        finally:
            self.lives.clear()
            for end in (self.receiver, self.sender, self.controller):
                end.close()
