"""Requests that are interrupted: what comes back is one answer, with every column that engines told of its tokens.

Knows: a replica that answers in parts as it is told.
Does not know: why a replica interrupts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import (
    IMAGES,
    Generation,
    GenerationRequest,
    Grammar,
    SamplingParams,
    Structure,
    VersionSpan,
)
from areal_core.testing.clock import StepClock

if TYPE_CHECKING:
    from ..bench import LoopBench

_COLUMN = "routed_experts"
_WAYS = ((0, 3, 2), (2, 0, 0, 1), (0, 0, 4), (1, 1, 1), (0, 5))
"""Tokens of each part: nothing before the first token, nothing in the middle, each token by itself."""


class _InParts:
    """A replica that gives so many tokens each time it is asked; the last part is the end, or `cut` like the others."""

    id, host = "rollout/0", "127.0.0.1"

    def __init__(self, sizes: Sequence[int], *, cut: bool = False) -> None:
        self._left, self._cut, self.asked = list(sizes), cut, list[GenerationRequest]()

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Answer `generate`. Any: as in the contract."""
        assert method == "generate"
        (request,) = args
        self.asked.append(request)
        cut, done = self._cut and bool(self._left), request.num_prior
        count = self._left.pop(0) if self._left else 0
        numbers = range(done, done + count)
        return Generation(
            output_ids=[10 + number for number in numbers],
            logprobs=[-1.0 - number for number in numbers],
            version_spans=[VersionSpan(start=0, stop=count, version=len(self.asked))] if count else [],
            stop_reason=StopReason.ABORTED if self._left or cut else StopReason.STOP,
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


@check("loop.pool.budget", level=Level.FAULTS, law=1, spec="infer#continued-requests")
async def budget(bench: LoopBench) -> None:
    """A request that is interrupted at the last token it may have is whole, by its length: nobody is asked for none."""
    for sizes in ((9,), (3, 6), (8, 0, 1)):
        replica = _InParts(sizes, cut=True)
        pool = bench.parts.rollout.pool([replica], clock=StepClock())
        sampling = SamplingParams(max_new_tokens=9, seed=3)
        made = await pool.generate(GenerationRequest(request_id="r", input_ids=(5, 6), sampling=sampling))  # type: ignore[arg-type]
        told = f"a request for 9 tokens, interrupted after {sizes}"
        asked = [request.sampling.max_new_tokens for request in replica.asked]
        expect(len(asked) == len(sizes), f"{told}, was made for {asked} tokens")
        expect(len(made.output_ids) == 9, f"{told}, came back with {len(made.output_ids)}")
        expect(made.stop_reason is StopReason.LENGTH, f"{told}, ended by {made.stop_reason}")


_CHANGES = ("request_id", "input_ids", "num_prior", "sampling")
"""Fields of a request that differ where it goes on; of its sampling the budget alone."""


@check("loop.pool.goes_on", level=Level.FAULTS, law=1, spec="infer#continued-requests")
async def goes_on(bench: LoopBench) -> None:
    """Wherever a request goes on it asks for what it asked for: structure, adapter, images and all its sampling."""
    sampling = SamplingParams(
        max_new_tokens=9,
        min_new_tokens=4,
        seed=3,
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        stop=("a",),
        stop_token_ids=(7,),
    )
    asked: Any = GenerationRequest(
        request_id=RequestId("r"),
        input_ids=(5, 6),
        sampling=sampling,
        structure=Structure(grammar=Grammar.REGEX, text="a+"),
        extras={IMAGES: (b"one", b"two")},
        adapter="critic",
        num_prior=1,
    )
    for sizes in _WAYS:
        replica = _InParts(sizes)
        await bench.parts.rollout.pool([replica], clock=StepClock()).generate(asked)
        for number, request in enumerate(replica.asked[1:], start=1):
            prior = len(request.input_ids) - len(asked.input_ids) + asked.num_prior
            told = (
                f"in parts of {sizes} tokens, call {number} goes on with {request.num_prior} prior tokens, not {prior}"
            )
            expect(request.num_prior == prior, told)
            for field in attrs.fields(GenerationRequest):
                got, wanted = (getattr(each, field.name) for each in (request, asked))
                same = field.name in _CHANGES or got == wanted
                expect(same, f"in parts of {sizes} tokens, call {number} goes on with {field.name} {got}, not {wanted}")
            kept = attrs.evolve(request.sampling, max_new_tokens=sampling.max_new_tokens)
            expect(kept == sampling, f"in parts of {sizes} tokens, call {number} goes on with the sampling {kept}")
