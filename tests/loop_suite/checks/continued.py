"""Requests that are interrupted: what comes back is one answer, with every column that engines told of its tokens.

Knows: a replica that answers in parts as it is told.
Does not know: why a replica interrupts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams, VersionSpan
from areal_core.testing.clock import StepClock

if TYPE_CHECKING:
    from ..bench import LoopBench

_COLUMN = "routed_experts"
_WAYS = ((0, 3, 2), (2, 0, 0, 1), (0, 0, 4), (1, 1, 1), (0, 5))
"""Tokens of each part: nothing before the first token, nothing in the middle, each token by itself."""


class _InParts:
    """A replica that gives so many tokens each time it is asked; the last part is the end."""

    id, host = "rollout/0", "127.0.0.1"

    def __init__(self, sizes: Sequence[int]) -> None:
        self._left, self.asked = list(sizes), list[GenerationRequest]()

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer `generate`. Any: as in the contract."""
        assert method == "generate"
        (request,) = args
        self.asked.append(request)
        count, done = self._left.pop(0), request.num_prior
        numbers = range(done, done + count)
        return Generation(
            output_ids=[10 + number for number in numbers],
            logprobs=[-1.0 - number for number in numbers],
            version_spans=[VersionSpan(start=0, stop=count, version=len(self.asked))] if count else [],
            stop_reason=StopReason.ABORTED if self._left else StopReason.STOP,
            token_extras={_COLUMN: torch.tensor(list(numbers))} if count else {},
        )


@check("loop.pool.in_parts", level=Level.FAULTS, law=1, spec="infer#continued-requests")
async def in_parts(bench: LoopBench) -> None:
    """An answer in parts, some of them empty, is whole: tokens, log-probs, versions and columns, once and in order."""
    for sizes in _WAYS:
        replica, total = _InParts(sizes), sum(sizes)
        pool = bench.parts.rollout.pool([replica], clock=StepClock())
        sampling = SamplingParams(max_new_tokens=9, seed=3)
        made = await pool.generate(GenerationRequest(request_id="r", input_ids=(5, 6), sampling=sampling))  # type: ignore[arg-type]
        told = f"an answer in parts of {sizes} tokens"
        expect(made.output_ids == tuple(range(10, 10 + total)), f"{told} came back as {made.output_ids}")
        expect(made.logprobs == tuple(-1.0 - n for n in range(total)), f"{told} has the log-probs {made.logprobs}")
        column = made.token_extras.get(_COLUMN)
        expect(column is not None and column.tolist() == list(range(total)), f"{told} has the column {column}")
        versions = [span.version for span in made.version_spans for _ in range(span.start, span.stop)]
        wanted = [number for number, size in enumerate(sizes, 1) for _ in range(size)]
        expect(versions == wanted, f"{told} has the versions {versions}, not {wanted}")
        left = [request.sampling.max_new_tokens + request.num_prior for request in replica.asked]
        expect(set(left) == {9}, f"{told}: what was left of the budget of 9 was {left}, prior tokens added")
