"""What every role's bench has: the target, a folder, tolerances, notes, and an end.

A check gets one bench argument; the bench lives as long as the session and keeps what is dear to make.

Knows: what all benches share.
Does not know: any role.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from areal_conformance.adapter import Case, Fault, Threshold, Tolerance
from areal_conformance.check import Check
from areal_conformance.deadline import Deadline, within
from areal_conformance.outcome import HarnessError, Inconclusive, NotRefused, Violation
from areal_conformance.target import Target
from areal_core.contract.errors import ArealError

T = TypeVar("T")
SOON_S = 6.0
"""Within which whatever waits for nobody has to end, and a death or a silence to be noticed. Nothing right takes a
tenth of it."""


class Bench:
    """Base of every role's bench. `begin` and `end` frame one check; `close` ends the session."""

    steps_time: ClassVar[bool] = False
    """Whether the targets' own deadlines are of a clock that the checks step."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.notes: list[str] = []
        self.numbers: dict[str, float] = {}
        self.find: Callable[[str], Check | None] = lambda _id: None
        """Gives another check of the role, None where it is not the target's business. The session's."""
        self._check: Check | None = None
        self._root = Path(tempfile.mkdtemp(prefix="areal-conformance-"))
        self._count = 0

    @property
    def folder(self) -> Path:
        """Return an empty folder of this check's own."""
        path = self._root / f"check-{self._count:04d}"
        path.mkdir(exist_ok=True)
        return path

    @property
    def shared_folder(self) -> Path:
        """Return a folder that lives as long as the session, for models and the like."""
        path = self._root / "shared"
        path.mkdir(exist_ok=True)
        return path

    def begin(self, check: Check) -> None:
        """Called before each check."""
        self._check = check
        self._count += 1
        self.notes, self.numbers = [], {}

    @property
    def check(self) -> Check:
        """Return the check under way."""
        assert self._check is not None
        return self._check

    async def end(self, *, passed: bool) -> None:
        """Called after each check, in the loop that ran it: let go of what that check started."""

    async def aclose(self) -> None:
        """Let go of everything kept between checks. Called once, in the session's loop."""

    def close(self) -> None:
        """Remove the folders; called after `aclose`, also when the loop hangs. Ends child processes by force."""
        shutil.rmtree(self._root, ignore_errors=True)

    def case(self, *claims: str, rank: int = 0, world_size: int = 1, **options: Any) -> Case:
        """Return the case of building the target with the abilities `claims` switched on."""
        target = self.target
        return Case(
            role=target.role,
            device=target.locator.device,
            make=lambda given: target.registry.build(target.role, target.name, given),
            folder=self.folder,
            options={**target.options(*claims), **options},
            rank=rank,
            world_size=world_size,
        )

    def build(self, *claims: str, **options: Any) -> Any:
        """Build the target, not started. Any: the role decides."""
        return self.target.adapter.build(self.case(*claims, **options))

    def tolerance(self, *, atol: float = 0.0, rtol: float = 0.0) -> Tolerance:
        """Return the check's own tolerance, or the adapter's where that is looser; a looser one is noted."""
        own = Tolerance(atol=atol, rtol=rtol)
        given = self.target.adapter.tolerances.get(self._check.id) if self._check else None
        if given is None:
            return own
        looser = Tolerance(atol=max(atol, given.atol), rtol=max(rtol, given.rtol), why=given.why)
        note = f"tolerance {looser.atol:g} + {looser.rtol:g} |x| instead of {atol:g} + {rtol:g} |x|: {given.why}"
        if note not in self.notes:
            self.notes.append(note)
        return looser

    def tell(self, figure: str, value: float) -> None:
        """Put a figure into the report, one of those that the check names."""
        if figure not in self.check.figures_in(self.target.adapter.dtypes):
            raise HarnessError(f"{self.check.id} tells {figure!r}, which is none of its figures")
        self.numbers[figure] = value

    def judge_figures(self) -> None:
        """Hold the figures of the check to the bounds that the adapter or the run sets.

        Raises:
            Violation: some are outside.
            Inconclusive: one that has bounds was not measured.
        """
        promises = self.target.adapter.promises
        bound = [name for name in self.check.figures_in(self.target.adapter.dtypes) if name in promises]
        told = {name: self.numbers[name] for name in bound if name in self.numbers}
        outside = [
            f"{name} is {value:.4g}, must be {promises[name]}"
            for name, value in told.items()
            if not promises[name].at_least <= value <= promises[name].at_most
        ]
        if outside:
            raise Violation("; ".join(outside))
        if len(told) < len(bound):
            raise Inconclusive(f"not measured here, and bound: {', '.join(name for name in bound if name not in told)}")

    @contextlib.contextmanager
    def crossing(self, counts: str, default: int = 0) -> Iterator[tuple[int, ...]]:
        """Give the sizes to make around each threshold of what `counts`, all of them set as small as the adapter says.

        For a target that declares none they are around `default`, and there are none without one.
        """
        found = [one for one in self.target.adapter.thresholds if one.counts == counts]
        if not found and default:
            found = [Threshold(counts=counts, at=default)]
        whole = self.target
        with contextlib.ExitStack() as stack:
            for one in found:
                self.target = self.target.varied(one.options)
                if one.place:
                    stack.enter_context(_set(one.place, one.at))
            try:
                yield tuple(sorted({size for one in found for size in around(one.at)}))
            finally:
                self.target = whole

    @contextlib.contextmanager
    def varied(self, variant: str) -> Iterator[None]:
        """Let what is built have the options of one of the adapter's variants; "" names none."""
        whole = self.target
        if variant:
            self.target = whole.varied(whole.adapter.variants[variant].options)
        try:
            yield
        finally:
            self.target = whole

    @contextlib.contextmanager
    def suffering(self, fault: Fault) -> Iterator[Fault]:
        """Inject a fault for the block; Inconclusive if it never fired."""
        fault.inject()
        try:
            yield fault
        finally:
            fault.heal()
        if not fault.fired():
            raise Inconclusive(f"the fault {type(fault).__name__} never fired")

    def fault(self, engine: Any, name: str) -> Fault:
        """Return one of the target's own faults; Inconclusive if its adapter has none of that name."""
        faults = self.target.adapter.faults(engine)
        if name not in faults:
            raise Inconclusive(f"the adapter has no fault {name!r}; it has {', '.join(sorted(faults)) or 'none'}")
        return faults[name]

    async def soon(self, work: Awaitable[T], what: str, within_s: float = SOON_S) -> T:
        """Await something that has to end soon; Violation if it does not."""
        deadline = self.deadline(within_s)
        try:
            return await within(work, deadline)
        except TimeoutError:
            if deadline.left():
                raise
            raise deadline.late(f"{what} did not end within {deadline.limit_s:g} s") from None

    def deadline(self, seconds: float) -> Deadline:
        """Return a deadline so far off, times the patience of the target."""
        return Deadline(seconds * self.target.adapter.patience)

    def refuses(self, claim: str, action: Callable[[], Any]) -> None:
        """Expect a plain call to be refused with an ArealError that says why.

        NotRefused if it returned; the session then looks whether the ability works.
        """
        with _refusal(claim):
            action()

    async def arefuses(self, claim: str, action: Callable[[], Awaitable[Any]]) -> None:
        """As `refuses`, for a coroutine function."""
        with _refusal(claim):
            result = action()
            if inspect.isawaitable(result):
                await result


def around(size: int) -> tuple[int, ...]:
    """Return one less, as many, one more, and twice as many and one: both sides, and a third piece that is short."""
    return size - 1, size, size + 1, 2 * size + 1


@contextlib.contextmanager
def _set(place: str, number: int) -> Iterator[None]:
    """Let a number of a module be another one; several sizes to choose from become that one alone."""
    name, _, attribute = place.partition(":")
    try:
        module = importlib.import_module(name)
        kept = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise HarnessError(f"the adapter names a threshold at {place!r}, which is not there: {error}") from error
    setattr(module, attribute, (number,) if isinstance(kept, tuple) else number)
    try:
        yield
    finally:
        setattr(module, attribute, kept)


@contextlib.contextmanager
def _refusal(claim: str) -> Iterator[None]:
    try:
        yield
    except ArealError as error:
        if not error.what or not (error.why or error.fix):
            told = f"{type(error).__name__} says neither why nor fix"
            raise Violation(f"{claim} is refused without a reason: {told}") from error
    else:
        raise NotRefused(claim)
