"""What is sent for a request, and what is read from an answer a real server gave."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve

from areal_core.contract.ids import RequestId
from areal_core.contract.inference import IMAGES, GenerationRequest, Grammar, SamplingParams, Structure, VersionSpan
from areal_serving.dialect import Call
from areal_serving.http import ServerAnswer
from areal_sglang.payloads import generate_body, reply_of, score_body, scores_of, server_name

ANSWER: dict[str, Any] = {
    "text": "?gg",
    "output_ids": [61, 9, 9],
    "meta_info": {
        "id": "areal-1.",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 3,
        "weight_version": "2",
        "queue_time": 0.0004,
        "first_token_latency": 0.0162,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-1.9148, 61, None], [-2.2773, 9, None], [-2.4698, 9, None]],
        "completion_tokens": 3,
        "cached_tokens": 0,
        "weight_versions": [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 3}],
    },
}
"""What SGLang 0.5.23 answered, without fields nobody reads."""


def call(*, adapter: str = "", num_prior: int = 0, end_ids: tuple[int, ...] = (1,), **sampling: Any) -> Call:
    """Return a checked call. Any: fields of SamplingParams."""
    params = SamplingParams(**{"max_new_tokens": 8, **sampling})
    request = GenerationRequest(
        request_id=RequestId("r"), input_ids=(3, 4, 5), sampling=params, adapter=adapter, num_prior=num_prior
    )
    return Call(
        request=request,
        server_id="areal-1",
        max_tokens=8,
        min_tokens=0,
        seed=12345,
        end_ids=end_ids,
        cache_space="@4",
    )


def test_no_name_begins_another() -> None:
    """SGLang ends every request whose name begins with the one given, so ending areal-1 must not end areal-12."""
    assert not server_name("areal-12").startswith(server_name("areal-1"))


def test_all_that_ends_an_output_is_said() -> None:
    """The model's own end tokens count only where the call lists them."""
    sent = generate_body(call(end_ids=(1, 7)))["sampling_params"]

    assert sent["ignore_eos"] is True
    assert sent["stop_token_ids"] == [1, 7]


def test_the_prefix_cache_is_separated() -> None:
    """Entries of other weights are never found."""
    assert generate_body(call())["extra_key"] == "@4"


def test_a_seed_is_the_request_s_own_in_every_part() -> None:
    """The stream is indexed by position: a continued request that got another seed would not go on where it was."""
    assert generate_body(call(seed=7, num_prior=2))["sampling_params"]["sampling_seed"] == 7


def test_a_seed_beyond_63_bits_is_taken() -> None:
    """SGLang refuses seeds outside the signed 64-bit numbers."""
    assert generate_body(call(seed=2**64 - 1))["sampling_params"]["sampling_seed"] == -1


def test_greedy_is_temperature_zero_and_nothing_else() -> None:
    """Filters of a greedy request would only make its log-probs others."""
    sent = generate_body(call(temperature=0.0, top_k=5, top_p=0.5))["sampling_params"]

    assert sent["temperature"] == 0.0
    assert not {"top_k", "top_p", "min_p"} & set(sent)


def test_penalties_are_sent_with_greedy_requests_too() -> None:
    """They change which token is the best."""
    for heat in (0.0, 1.0):
        sent = generate_body(call(temperature=heat, frequency_penalty=0.5, repetition_penalty=1.2))["sampling_params"]

        assert (sent["frequency_penalty"], sent["presence_penalty"], sent["repetition_penalty"]) == (0.5, 0.0, 1.2)


def test_the_best_of_one_is_not_greedy() -> None:
    """top_k 1 is SGLang's word for greedy, whose log-prob is the model's own; that of a one-token choice is 0."""
    sent = generate_body(call(top_k=1, temperature=0.7))["sampling_params"]

    assert (sent["top_k"], sent["temperature"]) == (2, 0.7)
    assert 0 < sent["top_p"] < 1e-6


def test_a_tiny_temperature_is_not_greedy() -> None:
    """Below 1e-6 SGLang decodes greedily without a word."""
    assert generate_body(call(temperature=1e-9))["sampling_params"]["temperature"] >= 1e-6


def test_stop_strings_stay_in_the_output_and_know_what_came_before() -> None:
    """The server must find a string that began in an earlier part."""
    sent = generate_body(call(stop=("ab",), num_prior=2))["sampling_params"]

    assert sent["stop"] == ["ab"]
    assert sent["no_stop_trim"] is True
    assert sent["custom_params"] == {"areal_num_prior": 2}


def test_a_structure_is_sent_as_what_it_is() -> None:
    """A JSON schema or a regular expression."""
    for grammar, name in ((Grammar.JSON_SCHEMA, "json_schema"), (Grammar.REGEX, "regex")):
        asked = call()
        asked = evolve(asked, request=evolve(asked.request, structure=Structure(grammar=grammar, text="[0-9]")))

        assert generate_body(asked)["sampling_params"][name] == "[0-9]"


def test_an_adapter_is_named() -> None:
    """A request names the adapter's version."""
    assert generate_body(call(adapter="a@2"))["lora_path"] == "a@2"
    assert "lora_path" not in generate_body(call())


def test_an_answer_is_read() -> None:
    """Ids, log-probs, stamps as numbers, times."""
    reply = reply_of(ANSWER, call())

    assert reply.output_ids == (61, 9, 9)
    assert reply.logprobs == (-1.9148, -2.2773, -2.4698)
    assert reply.spans == (VersionSpan(start=0, stop=2, version=1), VersionSpan(start=2, stop=3, version=2))
    assert (reply.finish, reply.queued_s, reply.first_token_s) == ("length", 0.0004, 0.0162)
    assert reply.cached_tokens == 0


def test_a_log_prob_that_is_no_number_is_read_as_that() -> None:
    """It comes as null; the core then fails the request."""
    meta = {**ANSWER["meta_info"], "output_token_logprobs": [[None, 61, None], [-2.0, 9, None], [-2.5, 9, None]]}

    assert math.isnan(reply_of({**ANSWER, "meta_info": meta}, call()).logprobs[0])


def test_an_answer_without_tokens_has_no_stamps() -> None:
    """A request that was ended before its first token."""
    meta = {**ANSWER["meta_info"], "finish_reason": {"type": "abort", "message": "Aborted", "status_code": None}}
    meta |= {"output_token_logprobs": [], "weight_versions": [{"version": "1", "start": 0, "end": 0}]}
    reply = reply_of({"output_ids": [], "meta_info": meta}, call())

    assert (reply.output_ids, reply.spans, reply.finish) == ((), (), "abort")


def test_an_abort_for_a_fault_is_a_failure() -> None:
    """SGLang reports its own faults as aborts; those must not pass as interruptions."""
    finish = {"type": "abort", "message": "out of memory", "status_code": 500}
    with pytest.raises(ServerAnswer, match="out of memory"):
        reply_of({**ANSWER, "meta_info": {**ANSWER["meta_info"], "finish_reason": finish}}, call())


def test_scores_are_aligned_to_the_token_they_describe() -> None:
    """The first token has no score of its own."""
    meta = {"input_token_logprobs": [[None, 3, None], [-0.5, 4, None], [-0.25, 5, None]]}

    assert scores_of({"meta_info": meta}, (3, 4, 5)) == [0.0, -0.5, -0.25]


def test_a_score_that_was_ended_is_none() -> None:
    """A pause ends it before it is computed."""
    assert scores_of({"meta_info": {"input_token_logprobs": []}}, (3, 4, 5)) is None


def test_a_score_asks_for_the_whole_input() -> None:
    """Input log-probs begin where they are asked to."""
    body = score_body("areal-score-1.", (3, 4, 5), 0.5, "score@2")

    assert body["logprob_start_len"] == 0
    assert body["sampling_params"]["temperature"] == 0.5


def test_images_are_sent_beside_the_tokens_with_their_kind() -> None:
    """Without it SGLang takes a JPEG for a path: its base64 begins with a slash."""
    plain = call()
    shown = evolve(plain, request=evolve(plain.request, extras={IMAGES: (b"\xff\xd8\xff",)}))

    assert generate_body(shown) == generate_body(plain) | {"image_data": ["data:image/jpeg;base64,/9j/"]}
