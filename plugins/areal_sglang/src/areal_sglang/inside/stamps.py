"""Stamp tokens whose step was computed before an update and read after it with the weights that computed them.

SGLang overlaps the reading of one step with the computing of the next. A pause in place leaves one step
computed but not read; SGLang then stamps its tokens with the new version.

Knows: the scheduler's queue of steps not read, version events of a request.
Does not know: how weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.runtime_context import get_serving
from sglang.srt.utils.weight_versions import WeightVersionEvent


def with_pending(original: Callable[..., Any], scheduler: Any, new_version: str | None) -> None:  # Any: SGLang's own
    """Hook of Scheduler.record_weight_version_change."""
    before = get_serving().weight_version
    original(scheduler, new_version)
    if new_version is None or new_version == before:
        return
    for batch, _ in getattr(scheduler, "result_queue", ()):
        for req in batch.reqs:
            if req.finished() or req.inflight_middle_chunks > 0:
                continue
            made = len(req.output_ids)
            if req.weight_version_events and req.weight_version_events[-1].num_output_tokens == made:
                req.weight_version_events.pop()
            req.weight_version_events.append(WeightVersionEvent(old_version=before, num_output_tokens=made + 1))
