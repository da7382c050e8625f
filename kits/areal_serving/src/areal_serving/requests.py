"""What every generator checks of a request before it computes, or sends, anything.

Knows: vocabulary and context of the model, ranges of sampling parameters.
Does not know: any engine; what an engine does not claim it refuses itself, with `refuse`.
"""

from __future__ import annotations

from collections.abc import Collection

from areal_core.contract.errors import BatchError, CapabilityError, PromptTooLong
from areal_core.contract.inference import GenerationRequest, SamplingParams


def check_request(request: GenerationRequest, *, vocabulary: int, context_length: int) -> int:
    """Return how many tokens the request may generate: its budget, or what the context leaves.

    Raises:
        BatchError: a token id outside the vocabulary, no prompt, sampling parameters out of range.
        PromptTooLong: no room for one token.
    """
    ids, sampling = request.input_ids, request.sampling
    bad = next((token for token in (*ids, *sampling.stop_token_ids) if not 0 <= token < vocabulary), None)
    if bad is not None:
        raise BatchError(
            f"token id {bad} in request {request.request_id!r} is outside the vocabulary",
            why=f"the model has {vocabulary} token ids, 0 to {vocabulary - 1}",
            fix="tokenize with the tokenizer of the same model folder",
        )
    if not 0 <= request.num_prior < max(1, len(ids)) or not ids:
        raise BatchError(
            f"request {request.request_id!r} has {len(ids)} tokens of which {request.num_prior} were generated",
            why="at least one token must be prompt",
        )
    problem = _out_of_range(sampling)
    if problem:
        raise BatchError(f"sampling of request {request.request_id!r}: {problem}")
    room = context_length - len(ids)
    if room < 1:
        raise PromptTooLong(
            f"prompt of {len(ids)} tokens leaves no room in a context of {context_length}",
            fix="shorten the prompt or raise rollout.context_length",
        )
    return min(sampling.max_new_tokens, room)


def refuse_extras(request: GenerationRequest, claimed: Collection[str], engine: str) -> None:
    """Refuse extras the engine has no use for.

    Raises:
        CapabilityError: names the first.
    """
    unknown = sorted(set(request.extras) - set(claimed))
    if unknown:
        raise CapabilityError(
            f"request {request.request_id!r} carries {', '.join(unknown)}",
            why=f"{engine} takes {', '.join(sorted(claimed)) or 'token ids and nothing else'}",
            fix="use an inference backend that claims it: areal backends --role infer",
        )


def _out_of_range(sampling: SamplingParams) -> str:
    if sampling.max_new_tokens < 1:
        return f"max_new_tokens is {sampling.max_new_tokens}, it must be at least 1"
    if not 0.0 <= sampling.temperature < float("inf"):
        return f"temperature is {sampling.temperature}, it must be 0 (greedy) or a positive number"
    if not 0.0 < sampling.top_p <= 1.0:
        return f"top_p is {sampling.top_p}, it must be in (0, 1]"
    if sampling.top_k < 0 or sampling.min_new_tokens < 0:
        return f"top_k {sampling.top_k} and min_new_tokens {sampling.min_new_tokens} must not be negative"
    if not 0.0 <= sampling.min_p <= 1.0:
        return f"min_p is {sampling.min_p}, it must be in [0, 1]"
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2.0 <= getattr(sampling, name) <= 2.0:
            return f"{name} is {getattr(sampling, name)}, it must be in [-2, 2]"
    if not 0.0 < sampling.repetition_penalty <= 2.0:
        return f"repetition_penalty is {sampling.repetition_penalty}, it must be in (0, 2]"
    return "a stop string is empty" if "" in sampling.stop else ""
