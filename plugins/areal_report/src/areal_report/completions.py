"""The best, the median and the worst of what a policy wrote last, from the store of episodes.

Knows: which episodes those are, and how one looks on a page.
Does not know: how episodes are kept (`areal_episodes`); without that package, or without a store, there are none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.errors import ArealError
from areal_report.text import html

NEWEST = 128
"""Episodes among which the best and the worst are looked for."""
MAX_TURNS = 12


@frozen(kw_only=True)
class Completion:
    """One episode, to read."""

    place: str
    """best, median or worst"""
    facts: Mapping[str, Any]  # Any: numbers and text, as `areal_episodes.reader.Reader.facts` gives them
    turns: Sequence[Mapping[str, str]]
    """Of its first trajectory: `role` (given or generated) and `text`."""


@frozen(kw_only=True)
class Completions:
    """Completions of one kind, and of how many episodes they were chosen."""

    title: str
    more: str
    chosen: Sequence[Completion]


def last_completions(folder: Path) -> list[Completions]:
    """Return those of the last steps and of the last evaluation; none without a store that can be read."""
    try:
        from areal_episodes.reader import Reader

        with Reader(folder) as reader:
            trained = _newest(reader, fate="trained", kind="train")
            evaluated = _newest(reader, fate="evaluated", kind="eval")
            newest = max((facts["version"] for facts in evaluated), default=0)
            evaluated = [facts for facts in evaluated if facts["version"] == newest]
            found = [
                ("Completions trained on", _of_steps(trained), trained),
                (f"Completions of the evaluation at version {newest}", f"of {len(evaluated)} prompts", evaluated),
            ]
            return [
                Completions(title=title, more=more, chosen=_outer_and_middle(reader, facts))
                for title, more, facts in found
                if facts
            ]
    except (ImportError, ArealError, sqlite3.Error):
        return []  # a page without them is better than none


def completions_html(completions: Completions) -> str:
    """Return them as a section of a page."""
    shown = "".join(_one(each) for each in completions.chosen)
    head = f"<h2>{html(completions.title)}</h2><p class='more'>{html(completions.more)}</p>"
    return f"{head}<div class='three'>{shown}</div>"


def _newest(reader: Any, *, fate: str, kind: str) -> list[Mapping[str, Any]]:  # Any: an areal_episodes Reader
    from areal_episodes.reader import Filter, Order

    newest = reader.facts(Filter(fate=fate, kind=kind), order=Order.NEWEST, limit=NEWEST)
    return [facts for facts in newest if facts["reward"] is not None]


def _of_steps(trained: Sequence[Mapping[str, Any]]) -> str:
    steps = [facts["step"] for facts in trained if facts["step"] is not None]
    if not steps:
        return f"of {len(trained)} episodes"
    first, last = min(steps), max(steps)
    return f"of {len(trained)} episodes of " + (f"step {last}" if first == last else f"steps {first} to {last}")


def _outer_and_middle(reader: Any, found: Sequence[Mapping[str, Any]]) -> list[Completion]:  # Any: as above
    by_reward = sorted(found, key=lambda facts: (facts["reward"], facts["id"]))
    places = {"best": len(by_reward) - 1, "median": len(by_reward) // 2, "worst": 0}
    chosen = {at: place for place, at in reversed(places.items())}  # of few episodes none is shown twice
    completions = []
    for at, place in sorted(chosen.items(), reverse=True):
        _, trajectories = reader.content(by_reward[at]["id"])
        turns = trajectories[0] if trajectories else []
        completions.append(Completion(place=place, facts=by_reward[at], turns=turns[:MAX_TURNS]))
    return completions


def _one(completion: Completion) -> str:
    facts = completion.facts
    step = f"step {facts['step']}" if facts["step"] is not None else ""
    parts = " ".join(f"{name} {value:.3g}" for name, value in facts["parts"].items() if isinstance(value, int | float))
    about = [facts["task_id"], step, f"{facts['output_tokens']} tokens", f"stop: {facts['stop']}", parts]
    turns = "".join(
        f"<pre class='{'own' if turn.get('role') == 'generated' else 'given'}'>{html(turn.get('text', ''))}</pre>"
        for turn in completion.turns
    )
    return (
        f"<article class='{completion.place}'><h3>{completion.place} <b>{facts['reward']:.3g}</b></h3>"
        f"<p class='more'>{html(' · '.join(part for part in about if part))}</p>{turns}</article>"
    )
