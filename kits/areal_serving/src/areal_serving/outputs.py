"""From a server's reply to the contract's generation.

Knows: stop strings over part boundaries, how spans are cut and joined.
Does not know: who replied.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import Generation, GenerationRequest, Timings, VersionSpan
from areal_core.contract.workflow import Tokenizer
from areal_serving.dialect import Reply
from areal_serving.stopping import StopStrings

NOTHING = Reply(output_ids=(), logprobs=(), spans=(), finish="abort")
"""Of a request that was interrupted before it began."""

_REASONS: Mapping[str, StopReason] = {
    "stop": StopReason.STOP,
    "length": StopReason.LENGTH,
    "abort": StopReason.ABORTED,
}


def timings_of(reply: Reply, *, total_s: float, waited_s: float) -> Timings:
    """Return how long a request took, of which it waited before the server had it."""
    queued = min(total_s, waited_s + reply.queued_s)
    return Timings(
        queued_s=queued,
        first_token_s=min(total_s, max(queued, waited_s + reply.first_token_s)),  # some servers do not tell
        total_s=total_s,
    )


def generation_of(reply: Reply, timings: Timings) -> Generation:
    """Return the contract's form of a reply.

    Raises:
        GenerationFailed: a finish nobody knows, or log-probs and stamps that do not fit the tokens.
    """
    if reply.finish not in _REASONS:
        raise GenerationFailed(f"the server ended a request with {reply.finish!r}", why=f"known: {sorted(_REASONS)}")
    count = len(reply.output_ids)
    spans = joined(reply.spans)
    if len(reply.logprobs) != count or (spans[-1].stop if spans else 0) != count:
        raise GenerationFailed(
            f"the server gave {len(reply.logprobs)} log-probs and stamps {list(spans)} for {count} tokens"
        )
    return Generation(
        output_ids=reply.output_ids,
        logprobs=reply.logprobs,
        version_spans=spans,
        stop_reason=_REASONS[reply.finish],
        timings=timings,
        token_extras=reply.token_extras,
    )


def joined(spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Return the spans without empty ones and with equal neighbours as one."""
    whole: list[VersionSpan] = []
    for span in spans:
        if span.stop <= span.start:
            continue
        if whole and whole[-1].version == span.version and whole[-1].stop == span.start:
            whole[-1] = evolve(whole[-1], stop=span.stop)
        else:
            whole.append(span)
    return tuple(whole)


def cut_at_stop(reply: Reply, request: GenerationRequest, model: Path) -> Reply:
    """Return the reply up to the token that completes a stop string, counting tokens of earlier parts too.

    A server sees one part only; a string that began in an earlier part it cannot find.
    """
    sampling, prior = request.sampling, request.num_prior
    watch = StopStrings(_tokenizer(model), sampling.stop)
    for token in request.input_ids[len(request.input_ids) - prior :]:
        watch.push(token, may_stop=False)
    for index, token in enumerate(reply.output_ids):
        if watch.push(token, may_stop=prior + index + 1 >= sampling.min_new_tokens):
            return _cut(reply, index + 1)
    return reply


def _cut(reply: Reply, count: int) -> Reply:
    spans = tuple(evolve(span, stop=min(span.stop, count)) for span in reply.spans if span.start < count)
    return evolve(
        reply,
        output_ids=reply.output_ids[:count],
        logprobs=reply.logprobs[:count],
        spans=spans,
        finish="stop",
        token_extras={name: column[:count] for name, column in reply.token_extras.items()},
    )


@functools.lru_cache(maxsize=4)
def _tokenizer(model: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise GenerationFailed(
            f"stop strings were asked for, and {str(model)!r} has no tokenizer",
            why=str(error),
            fix="save the tokenizer beside the model, or use stop_token_ids",
        ) from error
    found: Tokenizer = tokenizer
    return found
