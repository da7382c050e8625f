"""Tokens are counted when they are computed, once, also where a pause leaves one unread."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from areal_sglang.inside import counts


class Request:
    """What the hooks look at of SGLang's Req."""

    inflight_middle_chunks = 0

    def __init__(self) -> None:
        self.given_up = False

    def finished(self) -> bool:
        return self.given_up


class Scheduler:
    """A scheduler whose pause leaves one step of some requests unread."""

    def __init__(self, *unread: Request) -> None:
        self.result_queue = [(SimpleNamespace(reqs=list(unread)), object())]
        self._engine_paused = False

    def publish_load_snapshot(self, force: bool) -> None:
        """Show nothing."""


@pytest.fixture(autouse=True)
def _from_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(counts, "_counts", counts.Counts())
    yield


def _told() -> float:
    snapshot: Any = counts.told(lambda _: SimpleNamespace(), None)
    generated: float = snapshot.decode_moments[3]
    return generated


def _pause(scheduler: Scheduler) -> None:
    counts.paused(lambda paused: setattr(paused, "_engine_paused", True), scheduler)


def _read(request: Request) -> None:
    counts.generated(lambda *_: None, request)


def test_a_token_that_a_pause_leaves_unread_counts_at_once_and_once() -> None:
    """However often the engine is paused, and when the step is read after it."""
    request = Request()
    _read(request)
    scheduler = Scheduler(request)

    _pause(scheduler)
    _pause(scheduler)
    assert _told() == 2
    _read(request)
    assert _told() == 2
    _read(request)
    assert _told() == 3


def test_a_request_given_up_during_a_pause_takes_no_token_with_it() -> None:
    """The count never goes down: what was computed was computed."""
    request = Request()
    scheduler = Scheduler(request)
    _pause(scheduler)
    before = _told()

    request.given_up = True
    _read(request)

    assert before == _told() == 1
