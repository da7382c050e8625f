"""How a check ends: refusals, faults, hangs, claims and tolerances, on a bench that has nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from areal_conformance import deadline, runner
from areal_conformance import session as sessions
from areal_conformance.adapter import Adapter, Promise, Tolerance
from areal_conformance.benches.base import Bench
from areal_conformance.check import Check, Level, check
from areal_conformance.outcome import Inconclusive, Outcome, Violation, expect
from areal_conformance.session import Session
from areal_conformance.target import Locator, Target
from areal_core.contract.errors import CapabilityError, WorkerTimeout
from areal_core.plugins.claims import Claim, full, not_yet, when
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.registry import Registry


def make(body: Callable[[Any], Any], **fields: Any) -> Check:
    """Return a check of the role workflow. Any: the fields of a Check."""
    body.__doc__ = "It holds."
    given = {"level": Level.SINGLE, "law": 7, "spec": "index"}
    return check(fields.pop("id", "workflow.it.holds"), **{**given, **fields})(body)


def target(claims: dict[str, Claim] | None = None, **fields: Any) -> Target:
    """Return a target of a workflow with claims. Any: the fields of an Adapter."""
    manifest = Manifest(role="workflow", name="toy", contract=(1, 0), factory="toy:Toy", claims=claims or {})
    locator = Locator(role="workflow", name="toy")
    return Target(locator=locator, registry=Registry(), adapter=Adapter(**fields), manifest=manifest)


@pytest.fixture
def made() -> list[Session]:
    """Return the sessions of a test."""
    return []


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, made: list[Session]) -> Iterator[Callable[..., Any]]:
    """Return a function that makes checks on one target and gives their results."""
    monkeypatch.setattr(sessions, "bench_for", lambda role, target: Bench(target))

    def results(under_test: Target, *checks: Check) -> Any:
        monkeypatch.setattr(sessions, "checks_of", lambda _role: checks)
        session = Session(under_test)
        made.append(session)
        found = [session.run(one) for one in checks]
        return found if len(found) > 1 else found[0]

    yield results
    for session in made:
        session.close()


class Counted:
    """A fault that fires as often as it is told to."""

    def __init__(self, fires: int) -> None:
        self.fires, self.healed = fires, 0

    def inject(self) -> None:
        """Begin."""

    def heal(self) -> None:
        """Count."""
        self.healed += 1

    def fired(self) -> int:
        """Tell."""
        return self.fires


@pytest.mark.parametrize(("fires", "expected"), [(0, Outcome.INCONCLUSIVE), (1, Outcome.PASS)])
def test_a_fault_that_never_fired_proves_nothing(run: Any, fires: int, expected: Outcome) -> None:
    """The check is inconclusive, also the second time, and the fault is healed each time."""
    fault = Counted(fires)

    def body(bench: Bench) -> None:
        with bench.suffering(fault):
            pass

    assert expected is run(target(), make(body)).outcome
    assert fault.healed == (1 if fires else 2)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((Inconclusive("a pause"), None), Outcome.PASS),
        ((Inconclusive("a pause"), Violation("garbage")), Outcome.FAIL),
        ((Inconclusive("a pause"), Inconclusive("another"), None), Outcome.INCONCLUSIVE),
        ((Violation("garbage"), None), Outcome.FAIL),
        ((None, Violation("garbage")), Outcome.PASS),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)
def test_what_could_not_tell_is_made_once_more(run: Any, ends: tuple[Exception | None, ...], expected: Outcome) -> None:
    """That counts, and a note says why; a failure is not made again, nor is what could not tell twice."""
    left = list(ends)

    def body(_bench: object) -> None:
        if (error := left.pop(0)) is not None:
            raise error

    result = run(target(), make(body))

    assert result.outcome is expected
    assert len(ends) - len(left) == (2 if isinstance(ends[0], Inconclusive) else 1)
    noted = [note for note in result.notes if note.endswith("could not tell: a pause")]
    assert len(noted) == (isinstance(ends[0], Inconclusive) and expected is not Outcome.INCONCLUSIVE)


def test_a_missing_fault_is_named(run: Any) -> None:
    """An adapter without the fault makes the check inconclusive and says what it has."""
    one = target(faults=lambda _engine: {"stall": Counted(1)})
    result = run(one, make(lambda bench: bench.fault(None, "flip")))

    assert result.outcome is Outcome.INCONCLUSIVE
    assert "flip" in result.message and "stall" in result.message


def test_a_violation_names_its_law(run: Any) -> None:
    """The message begins with the law and its sentence."""
    result = run(target(), make(lambda _bench: expect(False, "expected 1, got 2")))

    assert result.outcome is Outcome.FAIL
    assert result.message.startswith("law 7: A weight update")
    assert result.message.endswith("expected 1, got 2")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_check_that_hangs_fails_and_the_next_one_runs(
    run: Any, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """A hang names law 9, costs its thread, and nothing else."""
    monkeypatch.setattr(runner, "GRACE_S", 0.2)
    forever = threading.Event()

    async def coroutine(_bench: object) -> None:
        await asyncio.Event().wait()

    def plain(_bench: object) -> None:
        forever.wait()

    stuck = make(coroutine if is_async else plain, deadline_s=0.2)
    first, second = run(target(), stuck, make(lambda _bench: None, id="workflow.it.goes_on"))
    forever.set()

    assert first.outcome is Outcome.FAIL
    assert first.message.startswith("law 9:")
    assert second.outcome is Outcome.PASS


CLAIM = "multi_turn"


@pytest.mark.parametrize(
    ("claim", "claimed"),
    [
        (None, False),
        (full(), True),
        (not_yet("no"), False),
        (when("device == cpu", "why"), True),
        (when("device == cuda", "why"), False),
        (when("turns == 2", "why"), True),
        (when("turns == 3", "why"), False),
        (when("both == true", "why"), True),
    ],
)
def test_claims_decide_what_runs(run: Any, claim: Claim | None, claimed: bool) -> None:
    """A check that needs a claim and one that looks at its refusal exclude each other."""
    options = {CLAIM: {"turns": 2, "both": True}}
    one = target({CLAIM: claim} if claim else {}, options=options)

    def refusal(bench: Bench) -> None:
        def refuse() -> None:
            raise CapabilityError("no turns", why="there are none")

        bench.refuses(CLAIM, refuse)

    positive, negative = run(
        one, make(lambda _bench: None, requires=(CLAIM,)), make(refusal, id="workflow.it.refuses", unless=(CLAIM,))
    )

    assert ((positive.outcome, negative.outcome) if claimed else (negative.outcome, positive.outcome)) == (
        Outcome.PASS,
        Outcome.SKIP,
    )


def test_an_ability_that_works_unclaimed_is_noted(run: Any) -> None:
    """Not refused, and every check of it passes: a note, no failure."""
    works = make(lambda _bench: None, requires=(CLAIM,))
    refusal = make(lambda bench: bench.refuses(CLAIM, lambda: None), id="workflow.it.refuses", unless=(CLAIM,))
    _, result = run(target(), works, refusal)

    assert result.outcome is Outcome.PASS
    assert any("claim it" in note for note in result.notes)


def _broken(_bench: object) -> None:
    expect(False, "garbage")


def _unseen(_bench: object) -> None:
    raise Inconclusive("no witness")


@pytest.mark.parametrize("positive", [_broken, _unseen, None])
def test_an_ability_neither_refused_nor_working_fails(run: Any, positive: Any) -> None:
    """Garbage instead of a refusal breaks law 8; so does an ability of which nothing can be seen."""
    checks = [make(positive, requires=(CLAIM,))] if positive else []
    refusal = make(lambda bench: bench.refuses(CLAIM, lambda: None), id="workflow.it.refuses", unless=(CLAIM,))
    results = run(target(), *checks, refusal)
    result = results[-1] if checks else results

    assert result.outcome is Outcome.FAIL
    assert result.message.startswith("law 8:")


def test_a_refusal_without_a_reason_fails(run: Any) -> None:
    """An error that says neither why nor fix refuses nothing."""

    def body(bench: Bench) -> None:
        def refuse() -> None:
            raise CapabilityError("no")

        bench.refuses(CLAIM, refuse)

    assert run(target(), make(body, unless=(CLAIM,))).outcome is Outcome.FAIL


def test_not_implemented_is_no_refusal(run: Any) -> None:
    """A method that is there only to raise NotImplementedError fails."""

    def body(bench: Bench) -> None:
        def refuse() -> None:
            raise NotImplementedError("later")

        bench.refuses(CLAIM, refuse)

    assert run(target(), make(body, unless=(CLAIM,))).outcome is Outcome.FAIL


def test_a_tolerance_only_loosens_and_is_noted(run: Any) -> None:
    """The adapter's tolerance counts where it is looser, with its reason in the result."""
    seen: list[Tolerance] = []

    def body(bench: Bench) -> None:
        seen.append(bench.tolerance(atol=1e-3, rtol=1e-5))

    looser = {"workflow.it.holds": Tolerance(atol=1e-5, rtol=1e-2, why="half precision")}
    result = run(target(tolerances=looser), make(body))

    assert (seen[0].atol, seen[0].rtol) == (1e-3, 1e-2)
    assert "half precision" in result.notes[0]


@pytest.mark.parametrize(
    ("promise", "outcome"),
    [
        (None, Outcome.PASS),
        (Promise(at_least=1.0), Outcome.PASS),
        (Promise(at_most=2.0), Outcome.PASS),
        (Promise(at_least=2.5), Outcome.FAIL),
        (Promise(at_most=1.5), Outcome.FAIL),
    ],
)
def test_a_figure_is_told_and_judged_where_the_adapter_promises_one(
    run: Any, promise: Promise | None, outcome: Outcome
) -> None:
    """The figure is in the result either way; without a promise no value fails."""
    measured = make(lambda bench: bench.tell("speed", 2.0), level=Level.NUMBERS, figures=("speed",))
    result = run(target(promises={"speed": promise} if promise else {}), measured)

    assert (result.outcome, result.numbers) == (outcome, {"speed": 2.0})
    assert outcome is Outcome.PASS or f"speed is 2, must be {promise}" in result.message


def test_figures_are_judged_when_all_are_told(run: Any) -> None:
    """A figure outside keeps no other from the report; one that is bound and was not measured is not passed over."""

    def tells_two(bench: Bench) -> None:
        bench.tell("float32 speed", 2.0)
        bench.tell("memory", 1.0)

    measured = make(tells_two, level=Level.NUMBERS, figures=("{dtype} speed", "memory", "ratio"))
    slow = run(target(promises={"float32 speed": Promise(at_least=3.0)}), measured)
    assert (slow.outcome, slow.numbers) == (Outcome.FAIL, {"float32 speed": 2.0, "memory": 1.0})

    unknown = run(target(promises={"ratio": Promise(at_most=3.0)}), measured)
    assert (unknown.outcome, unknown.message) == (Outcome.INCONCLUSIVE, "not measured here, and bound: ratio")


def test_a_check_tells_the_figures_it_names_and_no_other(run: Any) -> None:
    """Else nobody could bound it: names of bounds are compared with those."""
    result = run(target(), make(lambda bench: bench.tell("pace", 2.0), level=Level.NUMBERS, figures=("speed",)))

    assert result.outcome is Outcome.ERROR
    assert "tells 'pace', which is none of its figures" in result.message


def test_a_promise_within_which_nothing_lies_is_none() -> None:
    """Told where it is written."""
    with pytest.raises(ValueError, match="no figure is 2 or more and 1 or less"):
        Promise(at_least=2.0, at_most=1.0)


def test_more_ranks_than_the_run_has_are_skipped(run: Any) -> None:
    """A check of two ranks is no business of a run with one."""
    one, two = target(), make(_broken, ranks=2)

    assert run(one, two).outcome is Outcome.SKIP
    assert run(attrs.evolve(one, locator=attrs.evolve(one.locator, ranks=2)), two).outcome is Outcome.FAIL


def _overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system tell that this process waits for a processor all the time, and others have them."""
    began = time.monotonic()

    def told() -> deadline.Look:
        passed = time.monotonic() - began
        return deadline.Look(at=began + passed, waited={(1, 1): 0.9 * passed}, own=0.0, busy=passed, processors=1)

    monkeypatch.setattr(deadline, "look_now", told)
    monkeypatch.setattr(deadline, "look_lately", told)


def _raises(error: Exception) -> Callable[[Any], None]:
    def body(_bench: object) -> None:
        time.sleep(0.01)
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(lambda bench: asyncio.Event().wait(), Outcome.INCONCLUSIVE, id="its own deadline"),
        pytest.param(lambda bench: bench.soon(asyncio.Event().wait(), "it", 0.05), Outcome.INCONCLUSIVE, id="soon"),
        pytest.param(_raises(WorkerTimeout("no answer")), Outcome.INCONCLUSIVE, id="a deadline of the backend"),
        pytest.param(_raises(ValueError("wrong")), Outcome.FAIL, id="a wrong answer"),
    ],
)
def test_an_overloaded_machine_says_nothing_of_what_came_late(
    run: Any, monkeypatch: pytest.MonkeyPatch, body: Any, expected: Outcome
) -> None:
    """Of what is wrong it does."""
    _overloaded(monkeypatch)
    result = run(target(), make(body, deadline_s=0.1))

    assert result.outcome is expected
    assert ("the machine was overloaded" in result.message) == (expected is Outcome.INCONCLUSIVE)


def test_a_deadline_of_a_clock_that_is_stepped_is_late_on_no_machine(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that steps its target's clock says of a missed deadline what it says on an idle machine."""
    _overloaded(monkeypatch)
    monkeypatch.setattr(Bench, "steps_time", True)

    assert run(target(), make(_raises(WorkerTimeout("no answer")))).outcome is Outcome.FAIL


def test_a_session_says_when_something_may_be_in_the_way(run: Any, made: list[Session]) -> None:
    """A deadline that passed may have left a call behind; a wrong answer leaves nothing."""
    run(target(), make(_raises(ValueError("wrong"))))
    run(target(), make(_raises(WorkerTimeout("no answer"))))

    assert [session.poisoned for session in made] == [False, True]
