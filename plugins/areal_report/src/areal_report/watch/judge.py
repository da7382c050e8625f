"""The extension `watch`: each step is measured and judged; what is wrong is told once, or ends the run if asked to.

Knows: steps in a row, and what was told already.
Does not know: what a rule is about (`rules`), or who reads events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from areal_core.contract.errors import ArealError, TrainError
from areal_core.observe.events import WARNING
from areal_core.plugins.extensions import Watch
from areal_core.plugins.structure import structure
from areal_report.watch.config import WARN, GuardConfig
from areal_report.watch.measures import Groups, measures
from areal_report.watch.rules import Record, Rule, rules
from areal_report.watch.speed import Speed


class GuardStop(TrainError, code="E603"):
    """A step was as `guard:` says that none may be."""


def make_watch(options: Mapping[str, Any], tell: Callable[..., None], note: Callable[[str], None]) -> Watch:
    """Return the watch of a run. Any: what stands under `guard:`, and a step's record.

    Raises:
        UnknownKey, WrongType: `guard:` has a key nobody reads, or a value it cannot have.
    """
    warn = options.get("warn")
    if isinstance(warn, Mapping):
        options = {**options, "warn": {**attrs.asdict(WARN), **warn}}
    return Judge(structure(GuardConfig, options, "guard"), tell, note)


class Judge:
    """Call it with the record of each step and its groups of episodes, in order."""

    def __init__(self, config: GuardConfig, tell: Callable[..., None], note: Callable[[str], None]) -> None:
        watched = ((rule, getattr(config.warn, rule.name), getattr(config, rule.name)) for rule in rules())
        self._watches = [_Watch(rule, warn, stop, config.patience) for rule, warn, stop in watched]
        self._tell, self._note = tell, note
        self._speed = Speed()

    def __call__(self, record: dict[str, Any], groups: Groups) -> ArealError | None:
        """Add what the episodes were like and which warnings hold, tell of changes, return what ends the run."""
        record.update(measures(record, groups) | self._speed.measure(record))
        ends: ArealError | None = None
        for watch in self._watches:
            if watch.take(record):
                self._say(watch, record)
            if watch.stops and ends is None:
                ends = _ended(watch, record)
        held = {watch.rule.name: watch.value for watch in self._watches if watch.told}
        if held:
            record["warnings"] = held
        return ends

    def _say(self, watch: _Watch, record: Record) -> None:
        rule, step = watch.rule, record.get("step")
        says, advice = rule.says(watch.value, record), rule.advice(record)
        fields = {
            "name": rule.name,
            "step": step,
            "value": watch.value,
            "threshold": watch.warn,
            "over": not watch.told,
        }
        self._tell(WARNING, says=says, advice=advice, **fields)
        self._note(
            f"warning, step {step}: {says}; try: {advice}" if watch.told else f"step {step}: {rule.name} is over"
        )


class _Watch:
    """One rule over the steps of a run."""

    def __init__(self, rule: Rule, warn: float, stop: float, patience: int) -> None:
        self.rule, self.warn, self.stop = rule, warn, stop
        self.value = 0.0
        """What a warning is about: the step's number, or how many steps in a row."""
        self.told = self.stops = False
        self._patience = patience
        self._warned = self._stopped = self._calm = 0

    def take(self, record: Record) -> bool:
        """Take one step; tell whether a warning began or ended with it. A step without the number says nothing."""
        number = self.rule.read(record)
        if number is None or number != number:
            return False
        self._warned = self._warned + 1 if self._bad(number, self.warn) else 0
        self._stopped = self._stopped + 1 if self._bad(number, self.stop) else 0
        self._calm = 0 if self._warned else self._calm + 1
        self.value = float(max(self._warned, self._stopped)) if self.rule.counts else number
        self.stops = self._enough(self._stopped, self.stop)
        was = self.told
        self.told = self._enough(self._warned, self.warn) or (was and self._calm < self._patience)
        return self.told != was

    def _bad(self, number: float, threshold: float) -> bool:
        return threshold > 0 and self.rule.broken(number, threshold)

    def _enough(self, steps: int, threshold: float) -> bool:
        return threshold > 0 and steps >= (threshold if self.rule.counts else self._patience)


def _ended(watch: _Watch, record: Record) -> GuardStop:
    rule = watch.rule
    return GuardStop(
        f"guard.{rule.name} ended the run at step {record.get('step')}",
        why=f"{rule.says(watch.value, record)} (the threshold is {watch.stop:g})",
        fix=f"{rule.advice(record)}; its state is saved: areal train --resume RUN guard.{rule.name}=0 goes on from it",
    )
