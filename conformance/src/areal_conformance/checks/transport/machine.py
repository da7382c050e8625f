"""Any order of calls on several offers, against a model that is a dictionary.

Knows: the state an offer is in, and what may be read in it.
Does not know: how bytes travel.
"""

from __future__ import annotations

from typing import Any

from attrs import Factory, define
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from areal_conformance.benches.transport import TransportBench
from areal_conformance.benches.transport_tensors import plain
from areal_conformance.check import Level, check
from areal_conformance.checks.transport.judging import same, unreadable
from areal_conformance.outcome import Violation
from areal_core.contract.errors import ArealError
from areal_core.contract.weights import Offer
from areal_core.weights.tensors import manifest_of

_STEPS = 24
_EXAMPLES = 40


@define
class _Life:
    """One offer: what was sent to it so far, by a sink that may be ended."""

    offer: Offer
    seed: int
    sink: Any = None  # Any: the transport's own class
    written: set[str] = Factory(set)
    state: str = "open"


@check("transport.machine", level=Level.SINGLE, law=7, spec="weights", unless=("streams",), deadline_s=120.0)
def machine(bench: TransportBench) -> None:
    """In any order of open, write, finish, abort, release and read an offer gives its own bytes or an error."""
    limits = settings(
        max_examples=_EXAMPLES,
        stateful_step_count=_STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: _machine(bench), settings=limits)  # type: ignore[arg-type]


def _machine(bench: TransportBench) -> Any:
    """Make one machine around fresh ends of the transport. Any: hypothesis has no types for it."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.controller, self.sender, self.receiver = (bench.transport(small_buckets=True) for _ in range(3))
            self.lives: list[_Life] = []
            self.count = 0

        def pick(self, number: int) -> _Life:
            return self.lives[number % len(self.lives)]

        @precondition(lambda self: sum(life.state != "gone" for life in self.lives) < 4)
        @rule(version=st.integers(1, 3), parts=st.integers(0, 4))
        def open(self, version: int, parts: int) -> None:
            self.count += 1
            self.lives.append(_Life(offer=bench.travelled(self.controller.open(version)), seed=self.count))
            if parts:
                self.put(self.lives[-1], parts)

        @precondition(lambda self: any(life.state in ("open", "begun") for life in self.lives))
        @rule(number=st.integers(0, 5), parts=st.integers(1, 4))
        def write(self, number: int, parts: int) -> None:
            open_still = [life for life in self.lives if life.state in ("open", "begun")]
            self.put(open_still[number % len(open_still)], parts)

        def put(self, life: _Life, parts: int) -> None:
            tensors = plain(life.seed)
            if life.sink is None:
                life.sink, life.state = self.sender.sink(life.offer), "begun"
                life.sink.begin(manifest_of(tensors.items(), version=life.offer.version))
            names = [name for name in tensors if name not in life.written][:parts]
            life.sink.write({name: tensors[name] for name in names})
            life.written |= set(names)

        @precondition(lambda self: any(life.state == "begun" and len(life.written) == 4 for life in self.lives))
        @rule(number=st.integers(0, 5))
        def finish_whole(self, number: int) -> None:
            whole = [life for life in self.lives if life.state == "begun" and len(life.written) == 4]
            life = whole[number % len(whole)]
            life.sink.finish()
            life.state = "finished"
            self.judge(life)

        @precondition(lambda self: any(life.state == "begun" for life in self.lives))
        @rule(number=st.integers(0, 5))
        def finish(self, number: int) -> None:
            begun = [life for life in self.lives if life.state == "begun"]
            life = begun[number % len(begun)]
            whole = life.written == plain(life.seed).keys()
            try:
                life.sink.finish()
            except ArealError:
                if whole:
                    raise
                life.state = "lost"
                life.sink.abort()
                return
            if not whole:
                raise Violation(f"finish took {len(life.written)} of {len(plain(life.seed))} announced tensors")
            life.state = "finished"

        @precondition(lambda self: any(life.state == "begun" for life in self.lives))
        @rule(number=st.integers(0, 5))
        def abort(self, number: int) -> None:
            begun = [life for life in self.lives if life.state == "begun"]
            life = begun[number % len(begun)]
            life.sink.abort()
            life.state = "lost"

        @precondition(lambda self: self.lives)
        @rule(number=st.integers(0, 5))
        def release(self, number: int) -> None:
            life = self.pick(number)
            self.controller.release(life.offer)
            life.state = "gone" if life.state != "begun" else "given up"

        @precondition(lambda self: any(life.state == "finished" for life in self.lives))
        @rule(number=st.integers(0, 5))
        def release_whole(self, number: int) -> None:
            whole = [life for life in self.lives if life.state == "finished"]
            life = whole[number % len(whole)]
            self.controller.release(life.offer)
            life.state = "gone"

        @precondition(lambda self: any(life.state == "given up" for life in self.lives))
        @rule()
        def late(self) -> None:
            life = next(life for life in self.lives if life.state == "given up")
            life.state = "gone"
            try:
                life.sink.write({n: t for n, t in plain(life.seed).items() if n not in life.written})
                life.sink.finish()
            except ArealError:
                life.sink.abort()

        @precondition(lambda self: self.lives)
        @rule(number=st.integers(0, 5))
        def read(self, number: int) -> None:
            self.judge(self.pick(number))

        @rule()
        def receiver_closes(self) -> None:
            self.receiver.close()
            self.receiver = bench.transport(small_buckets=True)

        def judge(self, life: _Life) -> None:
            if life.state == "finished":
                same(plain(life.seed), bench.receive(self.receiver, life.offer), f"offer {life.seed}")
            else:
                unreadable(bench, self.receiver, life.offer, f"offer {life.seed}, {life.state}")

        def teardown(self) -> None:
            try:
                for life in self.lives:
                    self.judge(life)
            finally:
                self.lives.clear()
                for end in (self.receiver, self.sender, self.controller):
                    end.close()

    return Machine()
