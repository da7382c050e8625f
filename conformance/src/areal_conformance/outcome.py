"""How a check can end, and how a check says so.

Knows: the eight outcomes and the exceptions that lead to them.
Does not know: what the outcomes of many checks amount to (`run.verdict`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from attrs import Factory, field, frozen

E = TypeVar("E", bound=Exception)


WORKS_UNCLAIMED = "works but is not claimed: claim it"
"""How the note ends on an ability that was not refused, and that every check of it finds right."""
DISTANCE, ALLOWED = "distance from the oracle", "distance allowed"
"""The numbers of a check of learning that the report tells at the top: how far a pair is from the reference."""


class Outcome(StrEnum):
    """One check, one word."""

    PASS = "pass"
    FAIL = "fail"
    """The backend broke the contract, raised where it must not, or did not return within the deadline."""
    ERROR = "error"
    """The suite or the adapter broke; nothing is known about the backend."""
    INCONCLUSIVE = "inconclusive"
    """The check could not be made: a fault never fired, the adapter offers no witness, the machine was overloaded."""
    KNOWN_FAIL = "known-fail"
    UNEXPECTED_PASS = "unexpected-pass"
    SKIP = "skip"
    """Not this target's business: what it does not claim, the refusal of what it does, what its adapter says it does
    not do."""
    NOT_RUN = "not-run"


@frozen(kw_only=True)
class Result:
    """What one check gave.

    Example: Result(check="infer.pause.freezes", outcome=Outcome.FAIL, message="law 7: ...", seconds=0.4)
    """

    check: str
    outcome: Outcome = field(converter=Outcome)
    message: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    numbers: Mapping[str, float] = Factory(dict)
    """Measured values worth keeping: gaps, rates. Recorded, judged only where the check says so."""


class Violation(AssertionError):
    """The backend broke the contract; the message says what was expected and what came.

    `law` is given where what was seen breaks another law than the one the check guards: a hang, say.
    """

    def __init__(self, message: str, *, law: int | None = None) -> None:
        super().__init__(message)
        self.law = law


class Inconclusive(Exception):
    """The check could not be made; never raised for what a backend did wrong."""


class Exempt(Exception):
    """The check is about what the target does not do, as its adapter says: skipped."""


class HarnessError(Exception):
    """The suite, the adapter or the machine broke, not the backend."""


class NotRefused(Exception):
    """An ability that is not claimed was not refused; whether it works decides what that means."""

    def __init__(self, claim: str) -> None:
        super().__init__(claim)
        self.claim = claim


def expect(condition: object, message: str) -> None:
    """Raise Violation with `message` unless the condition is true.

    Unlike `assert` it survives `python -O` and says one sentence: expected, got.
    """
    if not condition:
        raise Violation(message)


def raises(kind: type[E], what: str, action: Callable[[], object]) -> E:
    """Expect an error of this class, and return it."""
    try:
        action()
    except kind as error:
        return error
    except Exception as error:
        raise Violation(f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise Violation(f"{what}: expected {kind.__name__}, nothing was raised")
