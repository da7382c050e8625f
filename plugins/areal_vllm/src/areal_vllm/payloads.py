"""Requests as `/inference/v1/generate` takes them, and its answers as ours.

Knows: the route's schema.
Does not know: HTTP, or when anything is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xxhash import xxh3_128_hexdigest

from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import IMAGES, GenerationRequest, Grammar, Structure, VersionSpan
from areal_serving.dialect import Call, Reply
from areal_serving.images import data_url
from areal_vllm.inside.asked import NUM_PRIOR, TEMPERATURE

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0
"""Between these vLLM takes a temperature as it is; below it silently takes 0.01, above it refuses."""
UNSTAMPED = "default"
"""What vLLM stamps tokens with before anybody named a version."""
_LOWEST_LOGPROB = -9999.0
"""What the server writes for minus infinity and NaN, which JSON cannot say."""


def id_inside(server_id: str) -> str:
    """Return the name vLLM gives a request of this route; aborting by any other aborts nothing, and answers 200."""
    return f"generate-tokens-{server_id}"


def body_of(call: Call) -> dict[str, Any]:
    """Return the body that asks for `call`. Any: JSON."""
    request = call.request
    body: dict[str, Any] = {
        "request_id": call.server_id,
        "token_ids": list(request.input_ids),
        "cache_salt": salt_of(call.cache_space),
        "sampling_params": _sampling(call),
    }
    if request.adapter:
        body["model"] = request.adapter
    if images := request.extras.get(IMAGES):
        body["content_parts"] = [{"type": "image_url", "url": data_url(image)} for image in images]
    return body


def salt_of(cache_space: str) -> str:
    """Return a name for a cache space that vLLM takes: it refuses `@`, `/` and more than 128 characters."""
    return xxh3_128_hexdigest(cache_space.encode())


def reply_of(answer: Mapping[str, Any]) -> Reply:
    """Read an answer. Any: JSON.

    Raises:
        GenerationFailed: it holds a log-prob that is no number.
    """
    choice = answer["choices"][0]
    ids = choice["token_ids"] or []
    logprobs = [entry["logprob"] for entry in (choice["logprobs"] or {}).get("content") or []]
    if any(value <= _LOWEST_LOGPROB for value in logprobs):
        raise GenerationFailed(
            "the server computed a log-prob that is no number",
            why=f"place {logprobs.index(min(logprobs))} of {len(logprobs)}; the weights served may hold NaN",
        )
    return Reply(
        output_ids=ids,
        logprobs=logprobs,
        spans=[
            VersionSpan(start=span["start"], stop=span["end"], version=version_of(span["version"]))
            for span in choice["weight_versions"] or ()
        ],
        finish=choice["finish_reason"],
        cached_tokens=((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens"),
    )


def version_of(stamp: str) -> int:
    """Return the version behind a stamp; what was never stamped is version 0."""
    return 0 if stamp == UNSTAMPED else int(stamp)


def score_body(server_id: str, input_ids: Sequence[int], temperature: float, policy: str = "") -> dict[str, Any]:
    """Return the body that asks for the log-probs of a prompt; one more token is drawn, since none cannot be."""
    return {
        **({"model": policy} if policy else {}),
        "request_id": server_id,
        "token_ids": list(input_ids),
        "sampling_params": {
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "detokenize": False,
            "extra_args": {TEMPERATURE: float(temperature)},
        },
    }


def scores_of(answer: Mapping[str, Any], input_ids: Sequence[int]) -> list[float]:
    """Return log p(token t | tokens before it) for each token of a scored prompt, 0.0 for the first. Any: JSON."""
    rows = answer["prompt_logprobs"] or [None]
    return [0.0, *(float(row[str(token)]["logprob"]) for row, token in zip(rows[1:], input_ids[1:], strict=True))]


def _sampling(call: Call) -> dict[str, Any]:
    request = call.request
    sampling = request.sampling
    found: dict[str, Any] = {
        "max_tokens": call.max_tokens,
        "min_tokens": call.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": True,  # the end tokens are among the stop tokens where they count
        "stop_token_ids": list(call.end_ids),
        "logprobs": 0,
        "detokenize": bool(sampling.stop),
    }
    if sampling.stop:
        found |= {"stop": list(sampling.stop), "skip_special_tokens": False}
    if sampling.seed is not None:
        found["seed"] = sampling.seed  # the hook in the worker draws by seed and place, so no part has one of its own
    if request.structure is not None:
        found["structured_outputs"] = _structure(request.structure)
    extra = _extra(request)
    if TEMPERATURE in extra:
        found["temperature"] = min(max(sampling.temperature, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE)
    return {**found, "extra_args": extra} if extra else found


def _extra(request: GenerationRequest) -> dict[str, Any]:
    heat = request.sampling.temperature
    found: dict[str, Any] = {}
    if heat and not LOWEST_TEMPERATURE <= heat <= HIGHEST_TEMPERATURE:
        found[TEMPERATURE] = heat
    sampling = request.sampling
    if request.num_prior and (sampling.frequency_penalty or sampling.presence_penalty or request.structure):
        found[NUM_PRIOR] = request.num_prior
    return found


def _structure(structure: Structure) -> dict[str, Any]:
    return {"json" if structure.grammar is Grammar.JSON_SCHEMA else "regex": structure.text}
