"""Payloads of /generate, and what its answers say.

Knows: SGLang's names for sampling parameters, the form of `meta_info`.
Does not know: routes, or when anything is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from areal_core.contract.inference import IMAGES, Grammar, SamplingParams, VersionSpan
from areal_serving.dialect import Call, Reply
from areal_serving.http import ServerAnswer
from areal_serving.images import data_url

Json = dict[str, Any]  # Any: JSON
NUM_PRIOR = "areal_num_prior"
"""Custom parameter that `inside.ends.prior_tokens` reads."""
LOWEST_TEMPERATURE = 1e-5
"""Below a tenth of this SGLang decodes greedily and reports log-probs at temperature 1."""
_TINY_SHARE = 1e-9


def server_name(server_id: str) -> str:
    """Return the request's name in the server. SGLang ends every request whose name begins with the one given."""
    return f"{server_id}."


def generate_body(call: Call) -> Json:
    """Return the body for one call; everything that ends an output is said, nothing is left to the model folder."""
    sampling = call.request.sampling
    body: Json = {
        "rid": server_name(call.server_id),
        "input_ids": list(call.request.input_ids),
        "sampling_params": {
            "max_new_tokens": call.max_tokens,
            "min_new_tokens": call.min_tokens,
            "stop_token_ids": list(call.end_ids),
            "ignore_eos": True,
            **_distribution(sampling),
            # The stream of a seed is indexed by position, so a continued request goes on where it was.
            **({} if sampling.seed is None else {"sampling_seed": signed(sampling.seed)}),
            **_text(call),
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
        "extra_key": call.cache_space,
    }
    if call.request.adapter:
        body["lora_path"] = call.request.adapter
    if images := call.request.extras.get(IMAGES):
        body["image_data"] = [data_url(image) for image in images]
    return body


def score_body(name: str, input_ids: Sequence[int], temperature: float, cache_space: str, policy: str = "") -> Json:
    """Return the body that asks for the log-probs of a prompt; one more token is drawn, since none cannot be."""
    return {
        **({"lora_path": policy} if policy else {}),
        "rid": name,
        "input_ids": list(input_ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": max(temperature, LOWEST_TEMPERATURE)},
        "return_logprob": True,
        "logprob_start_len": 0,
        "stream": False,
        "extra_key": cache_space,
    }


def scores_of(answer: Json, input_ids: Sequence[int]) -> list[float] | None:
    """Return log p(token t | tokens before it) for each token of a scored prompt, 0.0 for the first.

    None if the request was ended before it was computed.
    """
    entries = answer["meta_info"].get("input_token_logprobs") or []
    if len(entries) != len(input_ids):
        return None
    return [0.0, *map(_logprob, entries[1:])]


def _logprob(entry: Sequence[Any]) -> float:
    """Return the log-prob of (log-prob, id, text); json has no word for one that is not a number."""
    return math.nan if entry[0] is None else float(entry[0])


def signed(seed: int) -> int:
    """Return a seed as the signed 64-bit number SGLang takes."""
    seed %= 2**64
    return seed - 2**64 if seed >= 2**63 else seed


def _distribution(sampling: SamplingParams) -> Json:
    penalties = {
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.temperature == 0:
        return {"temperature": 0.0, **penalties}
    asked: Json = {
        **penalties,
        "temperature": max(sampling.temperature, LOWEST_TEMPERATURE),
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
    }
    if sampling.top_k == 1:  # SGLang's own word for greedy; here a distribution with one token left, log-prob 0
        asked |= {"top_k": 2, "top_p": _TINY_SHARE}
    return asked


def _text(call: Call) -> Json:
    """Return what depends on text or on earlier tokens; the hooks want to know how many of the input were generated."""
    request = call.request
    asked: Json = {"custom_params": {NUM_PRIOR: request.num_prior}} if request.num_prior else {}
    if request.sampling.stop:
        asked |= {"stop": list(request.sampling.stop), "no_stop_trim": True}
    if request.structure is not None:
        asked["json_schema" if request.structure.grammar is Grammar.JSON_SCHEMA else "regex"] = request.structure.text
    return asked


def reply_of(answer: Json, call: Call) -> Reply:
    """Read an answer.

    Raises:
        ServerAnswer: SGLang ended the request for a fault of its own.
    """
    meta = answer["meta_info"]
    finish = meta["finish_reason"]
    if finish["type"] == "abort" and finish.get("status_code"):
        raise ServerAnswer("/generate", int(finish["status_code"]), str(finish.get("message", "")))
    ids = tuple(answer["output_ids"])
    return Reply(
        output_ids=ids,
        logprobs=map(_logprob, meta["output_token_logprobs"]),
        spans=spans_of(meta, len(ids)),
        finish=finish["type"],
        queued_s=float(meta.get("queue_time") or 0.0),
        first_token_s=float(meta.get("first_token_latency") or 0.0),
        cached_tokens=meta.get("cached_tokens"),
    )


def spans_of(meta: Json, count: int) -> tuple[VersionSpan, ...]:
    """Return which weights computed which of `count` tokens. SGLang gives no stamps where it gives no tokens."""
    if not count:
        return ()
    return tuple(
        VersionSpan(start=span["start"], stop=span["end"], version=int(span["version"]))
        for span in meta["weight_versions"]
    )
