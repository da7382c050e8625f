"""A request that may be interrupted and goes on elsewhere, as if nothing had happened.

Knows: the tokens so far and what is left of the budget.
Does not know: replicas, or why it was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import Generation, GenerationRequest, Timings, VersionSpan

MAX_EMPTY_PARTS = 16
"""Interruptions in a row without one new token before the request is given up."""


class Continuation:
    """Collects the parts of one request until it is whole."""

    __slots__ = ("_ids", "_logprobs", "_num_calls", "_num_empty", "_parts", "_request", "_spans")

    def __init__(self, request: GenerationRequest, *, num_calls: int = 0) -> None:
        """Start with nothing generated; `num_calls` is how often it was asked for already."""
        self._request = request
        self._ids: tuple[int, ...] = ()
        self._logprobs: tuple[float, ...] = ()
        self._spans: tuple[VersionSpan, ...] = ()
        self._parts: tuple[Generation, ...] = ()
        self._num_calls = num_calls
        self._num_empty = 0

    def next_request(self) -> GenerationRequest:
        """Return what to ask for now: prompt and tokens so far, the rest of the budget, an id not used before."""
        self._num_calls += 1
        if self._num_calls == 1:
            return self._request
        request, done = self._request, len(self._ids)
        sampling = request.sampling
        return evolve(
            request,
            request_id=RequestId(f"{request.request_id}+{self._num_calls - 1}"),
            input_ids=(*request.input_ids, *self._ids),
            sampling=evolve(sampling, max_new_tokens=sampling.max_new_tokens - done) if done else sampling,
            num_prior=request.num_prior + done,
        )

    def add(self, part: Generation) -> Generation | None:
        """Take one part in; returns the whole once it is whole.

        Raises:
            GenerationFailed: interrupted again and again without a single token.
        """
        if not self._parts and part.stop_reason is not StopReason.ABORTED:
            return part
        offset = len(self._ids)
        self._parts += (part,)
        self._ids += part.output_ids
        self._logprobs += part.logprobs
        for span in part.version_spans:
            self._add_span(span.start + offset, span.stop + offset, span.version)
        if part.stop_reason is not StopReason.ABORTED:
            return self._whole(part.stop_reason)
        if len(self._ids) >= self._request.sampling.max_new_tokens:
            return self._whole(StopReason.LENGTH)
        self._num_empty = 0 if part.output_ids else self._num_empty + 1
        if self._num_empty >= MAX_EMPTY_PARTS:
            raise GenerationFailed(
                f"request {self._request.request_id} was interrupted {self._num_empty} times without a token",
                why="the engine aborts requests although no weight update holds them back",
                fix="see the logs of the inference workers",
            )
        return None

    def _add_span(self, start: int, stop: int, version: int) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and last.version == version:
            self._spans = (*self._spans[:-1], evolve(last, stop=stop))
            return
        if last is not None and version < last.version:
            raise GenerationFailed(
                f"request {self._request.request_id} was continued by version {version} after version {last.version}",
                why="a replica was released before it held the weights the others serve",
            )
        self._spans += (VersionSpan(start=start, stop=stop, version=version),)

    def _whole(self, stop_reason: StopReason) -> Generation:
        timings = [part.timings for part in self._parts]
        return Generation(
            output_ids=self._ids,
            logprobs=self._logprobs,
            version_spans=self._spans,
            stop_reason=stop_reason,
            timings=Timings(
                queued_s=sum(t.queued_s for t in timings),
                first_token_s=timings[0].first_token_s,
                total_s=sum(t.total_s for t in timings),
            ),
            token_extras=_joined([part.token_extras for part in self._parts if part.output_ids]),
        )


def _joined(extras: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return per-token tensors end to end. Any: tensors, by claimed ability."""
    names = sorted({name for mapping in extras for name in mapping})
    if not names:
        return {}
    import torch  # here: only a request with extra columns pays for it

    missing = [name for name in names if any(name not in mapping for mapping in extras)]
    if missing:
        raise GenerationFailed(f"token columns {missing} are missing from a part of an interrupted request")
    return {name: torch.cat([mapping[name] for mapping in extras]) for name in names}
