"""A request in several parts: what each is asked with."""

from __future__ import annotations

from areal_core.contract.data import StopReason
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams, VersionSpan
from areal_core.fleet.continuation import Continuation


def interrupted(*ids: int, version: int) -> Generation:
    return Generation(
        output_ids=ids,
        logprobs=[-0.5] * len(ids),
        version_spans=[VersionSpan(start=0, stop=len(ids), version=version)] if ids else [],
        stop_reason=StopReason.ABORTED,
    )


def test_every_part_has_an_id_of_its_own_and_the_first_the_request_s() -> None:
    """An engine that still ends an earlier part must not take the next for it."""
    asked = GenerationRequest(request_id=RequestId("r"), input_ids=(1, 2), sampling=SamplingParams(max_new_tokens=9))
    whole = Continuation(asked)
    parts = []

    for part in (interrupted(3, 4, version=1), interrupted(version=2), interrupted(5, version=3)):
        parts.append(whole.next_request())
        assert whole.add(part) is None
    parts.append(whole.next_request())

    assert parts[0] == asked
    assert len({part.request_id for part in parts}) == 4
    assert [part.input_ids for part in parts[1:]] == [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4, 5)]
    assert [(part.sampling.max_new_tokens, part.num_prior) for part in parts[1:]] == [(7, 2), (7, 2), (6, 3)]
