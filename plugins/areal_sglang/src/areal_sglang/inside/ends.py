"""End a request where the contract says.

SGLang looks for a stop string in as many tokens as its own encoding of the string has, though the model may
write it with more; it lets a stop string end an output before its minimum length; and with `ignore_eos` it
ignores the request's own stop tokens too.

Knows: one request of the scheduler, its sampling parameters.
Does not know: how tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR, FINISH_MATCHED_TOKEN

from areal_serving.stopping import StopStrings

PRIOR = "areal_num_prior"
"""Custom parameter of a request: how many tokens at the end of its input an earlier part generated."""

Original = Callable[..., Any]  # Any: SGLang's own


def prior_tokens(req: Any) -> Sequence[int]:
    """Return the tokens at the end of a request's input that an earlier part of it generated."""
    prior = (req.sampling_params.custom_params or {}).get(PRIOR, 0)
    found: Sequence[int] = req.origin_input_ids[len(req.origin_input_ids) - prior :]
    return found


def at_token(original: Original, req: Any, new_tokens: Sequence[int]) -> bool:
    """Hook of Req._check_token_based_finish: with `ignore_eos`, stop tokens still count."""
    if not req.sampling_params.ignore_eos:
        return bool(original(req, new_tokens))
    ends = req.sampling_params.stop_token_ids or ()
    for index, token in enumerate(new_tokens):
        if token in ends:
            req.finished_reason = FINISH_MATCHED_TOKEN(matched=token)
            req.finished_len = len(req.output_ids) - len(new_tokens) + index + 1
            return True
    return False


def at_string(original: Original, req: Any, new_accepted_len: int = 1) -> bool:
    """Hook of Req._check_str_based_finish: every stop string is found at the token that completes it."""
    params = req.sampling_params
    if not params.stop_strs or params.stop_regex_strs:
        return bool(original(req, new_accepted_len))
    watch, seen = getattr(req, "areal_stop_strings", (None, 0))
    if watch is None:
        watch = StopStrings(req.tokenizer, params.stop_strs)
        for token in prior_tokens(req):
            watch.push(token, may_stop=False)
    for index in range(seen, len(req.output_ids)):
        if watch.push(req.output_ids[index], may_stop=index + 1 >= params.min_new_tokens):
            req.finished_reason = FINISH_MATCHED_STR(matched=params.stop_strs[0])
            req.finished_len = index + 1
            return True
    req.areal_stop_strings = (watch, len(req.output_ids))
    return False


def until_minimum(original: Original, penalizer: Any) -> None:
    """Hook of BatchedMinNewTokensPenalizer._prepare: forbid what ends this request, for as long as it still must go on.

    SGLang forbids the model's end tokens also where they are ignored, and counts from 0 again for a request
    that was moved back to the queue.
    """
    original(penalizer)
    reqs = penalizer.orchestrator.reqs()
    for row, req in enumerate(reqs):
        if req.sampling_params.ignore_eos:
            penalizer.stop_token_penalties[row] = 0.0
            ends = sorted(req.sampling_params.stop_token_ids or ())
            penalizer.stop_token_penalties[row, ends] = float("-inf")
    made = torch.tensor([[len(req.output_ids)] for req in reqs], dtype=torch.int32)
    penalizer.len_output_tokens = made.to(penalizer.len_output_tokens.device)
