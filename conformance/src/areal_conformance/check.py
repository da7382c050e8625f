"""What a check is: a function with a permanent name and the facts that decide when it runs.

    @check("infer.pause.freezes", level=Level.SINGLE, law=7, spec="infer#pause", requires=("pause.keep",))
    async def pause_freezes(bench: InferBench) -> None:
        \"\"\"No token is computed between the return of `pause` and `resume`.\"\"\"

The id is public: unique, never reused, independent of files. Its first word is the role, or `static`.

Knows: the facts and their rules.
Does not know: how a check is run (`session`) or where checks are (`checks`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Any

from attrs import field, frozen

from areal_conformance.laws import LAWS

STATIC = "static"
CHECKED_ROLES = ("train", "infer", "pair", "scheduler", "transport", "workflow", "endpoint", "renderer", "device")
"""What can be checked against the contract: eight kinds of plugin, and a trainer with an inference engine."""

_ID = re.compile(r"[a-z]+(\.[a-z0-9_]+)+")


class Level(IntEnum):
    """What a check needs; a run of level N makes all checks up to N."""

    STATIC = 0
    """Nothing: no engine is built."""
    SINGLE = 1
    """One process or device."""
    DISTRIBUTED = 2
    """Two to four ranks."""
    LOOP = 3
    """A trainer and an inference engine together, or many updates."""
    FAULTS = 4
    """Kills, stalls, torn files, flipped bits."""
    NUMBERS = 5
    """A device worth measuring: parity and throughput, recorded."""


class Tier(StrEnum):
    """Whether every backend of the role must pass, or those that claim the ability."""

    CORE = "core"
    EXTENDED = "extended"


Body = Callable[[Any], Any]
"""A function of the role's bench, plain or async. Any: each role has a bench class of its own."""


@frozen(kw_only=True)
class Check:
    """One rule of the contract, and how to see whether it holds."""

    id: str = field()
    body: Body
    level: Level = field(converter=Level)
    law: int = field()
    spec: str
    """Page and anchor under `docs/contract/`, for example `infer#pause`."""
    title: str
    """The claim, one sentence: the first line of the body's docstring."""
    tier: Tier = field(converter=Tier)
    requires: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Claims without which the check is skipped."""
    unless: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Claims with which the check is skipped: it looks at how their absence is refused."""
    since: tuple[int, int] = (1, 0)
    ranks: int = 1
    """Processes of the role it starts; skipped by a run with fewer."""
    deadline_s: float = 60.0
    """Times the adapter's patience: a check that takes longer fails, naming law 9."""
    provisional: bool = False
    """Runs and is reported apart, without effect on the verdict, for one minor version."""
    figures: tuple[str, ...] = ()
    """What a check of level 5 tells, by the names in the report; `{dtype}` stands for each dtype of the adapter."""

    @id.validator
    def _well_formed(self, _attribute: object, value: str) -> None:
        if not _ID.fullmatch(value):
            raise ValueError(f"check id {value!r} must be role.words")

    @law.validator
    def _known(self, _attribute: object, value: int) -> None:
        if value not in LAWS:
            raise ValueError(f"check {self.id} names law {value}; laws are {min(LAWS)} to {max(LAWS)}")

    @property
    def role(self) -> str:
        """Return the role it belongs to, or `static`."""
        return self.id.partition(".")[0]

    def figures_in(self, dtypes: Iterable[str]) -> tuple[str, ...]:
        """Return the figures it tells of a backend with these dtypes."""
        return tuple(dict.fromkeys(name.replace("{dtype}", dtype) for name in self.figures for dtype in dtypes))

    @property
    def is_async(self) -> bool:
        """Whether the body is a coroutine function."""
        return inspect.iscoroutinefunction(self.body)


def check(
    id: str,
    *,
    level: Level,
    law: int,
    spec: str,
    tier: Tier | None = None,
    requires: tuple[str, ...] = (),
    unless: tuple[str, ...] = (),
    since: tuple[int, int] = (1, 0),
    ranks: int = 1,
    deadline_s: float = 60.0,
    provisional: bool = False,
    figures: tuple[str, ...] = (),
) -> Callable[[Body], Check]:
    """Turn a function of a bench into a Check. The tier is `extended` where claims decide, else `core`."""

    def decorate(body: Body) -> Check:
        title = (inspect.getdoc(body) or "").strip().partition("\n")[0]
        if not title:
            raise ValueError(f"check {id} has no docstring: its first line is the claim")
        return Check(
            id=id,
            body=body,
            level=level,
            law=law,
            spec=spec,
            title=title,
            tier=tier or (Tier.EXTENDED if requires or unless else Tier.CORE),
            requires=requires,
            unless=unless,
            since=since,
            ranks=ranks,
            deadline_s=deadline_s,
            provisional=provisional,
            figures=figures,
        )

    return decorate


class Row:
    """A member of a family with a title of its own, and facts other than its family's. Any: what the body takes.

    The title is a whole one, or the words for `{...}` in the docstring of the family's body. Without a case the body
    is given the member's name.
    """

    def __init__(self, title: str, case: Any = None, /, **facts: Any) -> None:
        self.title, self.case, self.facts = title, case, facts


def family(
    id: str, cases: Mapping[str, Any], *, requires: tuple[str, ...] = (), unless: tuple[str, ...] = (), **facts: Any
) -> Callable[[Callable[[Any, Any], Any]], tuple[Check, ...]]:
    """Turn a function of a bench and a case into one Check a case: rules of one shape, each with an id of its own.

        @family("train.ranks.refuse.{axis}", {"tensor": {"d": 1, "t": 2}}, unless=("parallel.{axis}",), ...)
        def refused(bench: TrainBench, layout: dict[str, int]) -> None:
            \"\"\"Without {axis} parallelism, a layout that has it is refused on every rank.\"\"\"

    The one field of `id` stands for the case's name, also in the claims and in the docstring; a case that is a `Row`
    has a title of its own. Any: what the body takes, and facts of `check`.
    """
    (word,) = re.findall(r"{\w+}", id)

    def decorate(body: Callable[[Any, Any], Any]) -> tuple[Check, ...]:
        made = []
        for name, given in cases.items():
            row = given if isinstance(given, Row) else Row("", given)
            case = name if row.case is None else row.case
            member = _member(body, case, _titled(body.__doc__ or "", row.title).replace(word, name))
            all_facts: dict[str, Any] = {"requires": requires, "unless": unless, **facts, **row.facts}
            for claims in ("requires", "unless"):
                all_facts[claims] = tuple(claim.replace(word, name) for claim in all_facts[claims])
            all_facts["spec"] = all_facts["spec"].replace(word, name)
            made.append(check(id.replace(word, name), **all_facts)(member))
        return tuple(made)

    return decorate


def _titled(doc: str, title: str) -> str:
    return doc.replace("{...}", title) if "{...}" in doc else title or doc


def _member(body: Callable[[Any, Any], Any], case: Any, doc: str) -> Body:
    async def waited(bench: Any) -> None:  # Any: as Body
        await body(bench, case)

    def plain(bench: Any) -> None:  # Any: as Body
        body(bench, case)

    member: Body = waited if inspect.iscoroutinefunction(body) else plain
    member.__doc__, member.__module__ = doc, body.__module__
    return member
