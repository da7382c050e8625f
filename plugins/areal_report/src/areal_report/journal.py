"""What happened in a run, from `events.jsonl`, read line by line and kept in bounded memory.

Knows: which events say how a run began and ended, how it was evaluated, what failed and what it was warned of.
Does not know: how any of it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from areal_core.observe.events import EVALUATED, RUN_ENDED, RUN_RESTARTED, RUN_STARTED, WARNING
from areal_core.observe.jsonl import read_lines
from areal_report.prompts import Counted, count_prompts

Event = Mapping[str, Any]  # Any: the writer's fields
MAX_KINDS = 50
"""Different failures and warnings kept; of each the last one, and how many there were."""
MAX_EVALUATIONS = 4000
MAX_CHANGES = 20
REPLICA_LOST, REWARD_REPLACED, GROUP_FAILED = "replica_lost", "reward_process_replaced", "group_failed"
CHANGED = "configuration_changed"


@define(kw_only=True)
class Happened:
    """One kind of failure or warning: the last of them, how many there were, and when the first one was."""

    kind: str
    text: str
    count: int = 0
    first: float
    last: float
    over: bool = False


@define(kw_only=True)
class Journal:
    """The events of a run that people want to know of."""

    started: Event = field(factory=dict)
    """The last start; a resumed run has several."""
    ended: Event = field(factory=dict)
    """Its end; empty while it goes on, and if it was killed."""
    num_starts: int = 0
    resumed_at: list[int] = field(factory=list)
    """The version at which each start but the first went on, those by itself too."""
    num_replaced: int = 0
    """Replicas and reward processes that died and were started anew."""
    num_failed: int = 0
    """Episodes that failed for good, each with its group."""
    prompts: Counted | None = None
    """None if nobody counted."""
    began: float | None = None
    latest: float | None = None
    """Times of the first and of the last event, seconds since 1970."""
    evaluations: dict[int, float] = field(factory=dict)
    failures: dict[str, Happened] = field(factory=dict)
    warnings: dict[str, Happened] = field(factory=dict)
    changes: list[str] = field(factory=list)
    """What resumes changed of the configuration; the last of them."""
    others: int = 0
    """Failures and warnings beyond those kept."""

    @property
    def restarts(self) -> int:
        """Return how often the run went on, or one of its processes did, after an end."""
        return len(self.resumed_at) + self.num_replaced

    @classmethod
    def of(cls, events: Iterable[Event]) -> Journal:
        """Keep what matters of events."""
        journal = cls()
        for event in events:
            journal.add(event)
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read a run's `events.jsonl`, also while it is written; one that is not there tells of nothing."""
        journal = cls.of(read_lines(path))
        journal.prompts = count_prompts(read_lines(path), journal.resumed_at)
        return journal

    def add(self, event: Event) -> None:
        """Take the next event."""
        kind, time = str(event.get("kind")), float(event.get("time", 0.0))
        self.num_replaced += kind == REWARD_REPLACED or (kind == REPLICA_LOST and event.get("replaced") is True)
        self.num_failed += kind == GROUP_FAILED
        self.began = time if self.began is None else self.began
        self.latest = time
        if kind == RUN_RESTARTED:
            self.resumed_at.append(int(event.get("version", 0)))
        if kind == RUN_STARTED:
            if "error" in self.ended:  # an attempt before this one
                self._count(self.failures, RUN_ENDED, RUN_ENDED, str(self.ended["error"]), time)
            if self.num_starts:
                self.resumed_at.append(int(event.get("version", 0)))
            self.started, self.ended, self.num_starts = event, {}, self.num_starts + 1
        elif kind == RUN_ENDED:
            self.ended = event
        elif kind == EVALUATED and isinstance(score := event.get("reward", event.get("loss")), int | float):
            self._evaluated(int(event["version"]), float(score))
        elif kind == CHANGED:
            self.changes = [*self.changes[1 - MAX_CHANGES :], f"at version {event.get('version')}, {event.get('text')}"]
        elif kind == WARNING:
            self._warned(str(event.get("name", kind)), event, time)
        elif "error" in event:
            text = str(event["error"])
            self._count(self.failures, f"{kind} {_without_numbers(text)}", kind, text, time)

    def _warned(self, name: str, event: Event, time: float) -> None:
        if event.get("over"):
            if name in self.warnings:
                self.warnings[name].over, self.warnings[name].last = True, time
            return
        advice = f"\ntry: {event['advice']}" if event.get("advice") else ""
        self._count(self.warnings, name, WARNING, f"{event.get('says', name)}{advice}", time)
        if name in self.warnings:
            self.warnings[name].over = False

    def _evaluated(self, version: int, reward: float) -> None:
        self.evaluations[version] = reward
        if len(self.evaluations) > MAX_EVALUATIONS:
            first, *others = self.evaluations
            self.evaluations = {at: self.evaluations[at] for at in (first, *others[1::2])}

    def _count(self, found: dict[str, Happened], name: str, kind: str, text: str, time: float) -> None:
        if name not in found:
            if len(found) >= MAX_KINDS:
                self.others += 1
                return
            found[name] = Happened(kind=kind, text=text, first=time, last=time)
        found[name].count += 1
        found[name].text, found[name].last = text, time


def _without_numbers(text: str) -> str:
    """Return the first line without what differs between failures of one cause."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text.partition("\n")[0])[:200]
