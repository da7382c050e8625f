"""Count tokens when they are generated, prompt tokens that were found, requests that had to make room.

SGLang counts tokens of finished requests, and of decoding steps without gaps; and it shows its counts some steps late.

Knows: what this scheduler did since it started.
Does not know: who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import define

_NOTE = "areal_counted"
_AHEAD = "areal_counted_ahead"
"""How many tokens of a request were counted before they were read."""


@define
class Counts:
    """Since start. What `decode_moments` of /v1/loads carry instead of SGLang's own, in this order."""

    prompt: float = 0.0
    found: float = 0.0
    preempted: float = 0.0
    generated: float = 0.0


_counts = Counts()
"""One scheduler per process."""

Original = Callable[..., Any]  # Any: SGLang's own


def generated(original: Original, req: Any, new_accepted_len: int = 1) -> None:
    """Hook of Req.update_finish_state, which is called for every token."""
    if not req.finished():
        _counts.generated += new_accepted_len - getattr(req, _AHEAD, 0)
        setattr(req, _AHEAD, 0)
    original(req, new_accepted_len)


def prefilled(original: Original, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook of ScheduleBatch.prepare_for_extend: each request's prompt counts once."""
    result = original(batch, *args, **kwargs)
    for req in batch.reqs:
        if not hasattr(req, _NOTE):
            setattr(req, _NOTE, True)
            _counts.prompt += len(req.origin_input_ids)
            _counts.found += req.cached_tokens
    return result


def made_room(original: Original, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook of ScheduleBatch.retract_decode."""
    result = original(batch, *args, **kwargs)
    _counts.preempted += len(result[0])
    return result


_scheduler: Any = None  # Any: SGLang's own


def shown(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook of Scheduler.publish_load_snapshot, which is called after every step."""
    global _scheduler
    _scheduler = scheduler
    return original(scheduler, *args, **kwargs)


def returned(original: Original, streamer: Any, reqs: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook of SchedulerOutputStreamer.stream_output: who has a whole output finds its tokens counted."""
    if _scheduler is not None and any(req.finished() for req in reqs):
        _scheduler.publish_load_snapshot(force=True)
    return original(streamer, reqs, *args, **kwargs)


def paused(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook of Scheduler.pause_generation, after which no step shows anything."""
    result = original(scheduler, *args, **kwargs)
    if getattr(scheduler, "_engine_paused", False):
        _count_ahead(getattr(scheduler, "result_queue", ()))
    scheduler.publish_load_snapshot(force=True)
    return result


def _count_ahead(queue: Iterable[tuple[Any, Any]]) -> None:  # Any: SGLang's own
    """Count the tokens a pause leaves computed and not read: SGLang overlaps the two.

    At once and for good, because a request that is given up during the pause takes its unread token with it.
    """
    unread = [req for batch, _ in queue for req in batch.reqs if not req.finished() and req.inflight_middle_chunks <= 0]
    for req in unread:
        if not getattr(req, _AHEAD, 0):
            setattr(req, _AHEAD, 1)
            _counts.generated += 1


def told(original: Original, inquirer: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook of SchedulerLoadInquirer.get_loads: put the counts where /v1/loads shows them."""
    snapshot = original(inquirer, *args, **kwargs)
    snapshot.decode_moments = [_counts.prompt, _counts.found, _counts.preempted, _counts.generated, 0.0, 0.0]
    return snapshot
