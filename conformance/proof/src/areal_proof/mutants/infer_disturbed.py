"""Generators that answer as asked until something comes between that should change nothing.

Knows: one defect each.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from typing import Any

from areal_proof.mutants.rows import breaking, row, then
from areal_reference.infer.config import CacheOnUpdate
from areal_reference.infer.engine import ReferenceInferenceEngine

breaks = breaking("infer/reference", ReferenceInferenceEngine)


def _forgotten(self: Any, word: str) -> None:
    """Let all that runs forget what it asked for. Any: an engine."""
    self.running.loop.rows.state[word][:] = False


def _without_ends(self: Any) -> None:
    self.running.loop.rows.end_ids[:] = -1


def _without_adapters(self: Any) -> None:
    for ticket in self.running.loop.rows.tickets:
        ticket.adapter = None


ROWS = breaks.rows(
    row("UpdatesEndStopStrings", "Looks for no stop string any more in what runs when weights are committed.",
        "infer.disturbed.kept", commit_weights=then(lambda self: _forgotten(self, "watched"))),
    row("UpdatesEndStopTokens", "In deterministic mode, forgets the stop tokens of what runs at a commit.",
        "infer.disturbed.deterministic",
        commit_weights=then(lambda self: _without_ends(self) if self._config.deterministic else None)),
    row("AnewWithoutPenalties", "Makes the cache of what runs anew after a commit, and forgets its penalties.",
        "infer.disturbed.recomputed",
        commit_weights=then(lambda self: _forgotten(self, "penalised")
            if self._config.kv_on_update is CacheOnUpdate.RECOMPUTE else None)),
    row("SleepEndsStopTokens", "Forgets the stop tokens of what is frozen when it sleeps.", "infer.disturbed.asleep",
        sleep=then(lambda self: _without_ends(self))),
    row("UpdatesEndAdapters", "Goes on without its adapter after a commit, where a request had named one.",
        "infer.disturbed.adapters", commit_weights=then(lambda self: _without_adapters(self))),
)  # fmt: skip
