"""Requests on the wire, and real answers read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from attrs import evolve

from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import IMAGES, Grammar, SamplingParams, Structure, VersionSpan
from areal_serving.dialect import Call
from areal_torch.testing.serving import ask
from areal_vllm.inside.asked import NUM_PRIOR, TEMPERATURE
from areal_vllm.payloads import body_of, id_inside, reply_of, salt_of, score_body, scores_of

from .recorded import answer


def call(
    *, num_prior: int = 0, structure: Structure | None = None, end_ids: tuple[int, ...] = (1,), **sampling: Any
) -> Call:
    request = evolve(ask(5, 9, 7, 30, name="t/0/1", num_prior=num_prior, **sampling), structure=structure)
    return Call(
        request=request,
        server_id="areal-1",
        max_tokens=8,
        min_tokens=2,
        seed=99,
        end_ids=end_ids,
        cache_space="@3",
    )


def asked(**arguments: Any) -> dict[str, Any]:
    sampling: dict[str, Any] = body_of(call(**arguments))["sampling_params"]
    return sampling


def test_every_field_of_the_contract_is_sent() -> None:
    """Nothing a request asks for is dropped on the way."""
    sent = asked(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.1,
        stop=("\n",),
        seed=2**63 - 1,
    )

    wanted = {
        "max_tokens": 8,
        "min_tokens": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.1,
        "stop": ["\n"],
        "seed": 2**63 - 1,
        "logprobs": 0,
    }
    assert wanted == {name: sent[name] for name in wanted}


def test_no_field_of_the_contract_is_unknown_here() -> None:
    """A field added to the contract must be sent, or refused: this fails until somebody decides."""
    known = {
        "max_new_tokens",
        "min_new_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop_token_ids",
        "stop",
        "ignore_eos",
    }
    known |= {"seed", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"}

    assert {name for name in SamplingParams.__slots__ if not name.startswith("__")} == known


def test_end_tokens_are_stop_tokens() -> None:
    """vLLM knows one end token, a model may have several: all that count are sent, and its own is ignored."""
    sent = asked(end_ids=(1, 40))

    assert sent["ignore_eos"] is True
    assert sent["stop_token_ids"] == [1, 40]


def test_text_is_made_only_for_stop_strings() -> None:
    """Detokenizing costs; a stop string is looked for in text with its special tokens."""
    assert asked()["detokenize"] is False
    assert asked(stop=("x",))["detokenize"] is True
    assert asked(stop=("x",))["skip_special_tokens"] is False


@pytest.mark.parametrize(("meant", "sent"), [(2.5, 2.0), (0.001, 0.01)])
def test_a_temperature_vllm_cannot_say_goes_beside(meant: float, sent: float) -> None:
    """vLLM refuses more than 2, and silently computes with 0.01 below that."""
    found = asked(temperature=meant)

    assert found["temperature"] == sent
    assert found["extra_args"] == {TEMPERATURE: meant}


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0, 2.0])
def test_any_other_temperature_is_sent_as_it_is(temperature: float) -> None:
    """Greedy included."""
    found = asked(temperature=temperature)

    assert found["temperature"] == temperature
    assert "extra_args" not in found


@pytest.mark.parametrize(
    "arguments",
    [
        {"frequency_penalty": 1.0},
        {"presence_penalty": 1.0},
        {"structure": Structure(grammar=Grammar.REGEX, text="[a-z]+")},
    ],
)
def test_prior_tokens_are_told_where_they_count(arguments: dict[str, Any]) -> None:
    """They are output for a penalty, and the beginning of a structured text."""
    assert asked(num_prior=2, **arguments)["extra_args"] == {NUM_PRIOR: 2}
    assert "extra_args" not in asked(num_prior=2)


@pytest.mark.parametrize(("grammar", "key"), [(Grammar.JSON_SCHEMA, "json"), (Grammar.REGEX, "regex")])
def test_structures_have_vllms_names(grammar: Grammar, key: str) -> None:
    """Each grammar has a field of its own."""
    assert asked(structure=Structure(grammar=grammar, text="{}"))["structured_outputs"] == {key: "{}"}


def test_a_cache_space_becomes_a_salt_vllm_takes() -> None:
    """vLLM answers 400 to a salt with `@` or `/`, and every version and adapter has another."""
    salts = [salt_of(space) for space in ("@1", "@2", "a/b@1", "a/b@1 " * 40)]

    assert len(set(salts)) == len(salts)
    assert all(len(salt) <= 128 and not set("@/\\\0") & set(salt) for salt in salts)
    assert answer("error_salt")["status"] == 400


def test_an_adapter_is_a_model() -> None:
    """Requests without one name no model."""
    plain = call()
    named = evolve(plain, request=evolve(plain.request, adapter="a@3"))

    assert body_of(named)["model"] == "a@3"
    assert "model" not in body_of(plain)


def test_a_real_answer_is_read() -> None:
    """Tokens, their log-probs, their version and the end."""
    reply = reply_of(answer("greedy"))

    assert len(reply.output_ids) == len(reply.logprobs) == 4
    assert all(-8 < value < 0 for value in reply.logprobs)
    assert reply.spans == (VersionSpan(start=0, stop=4, version=0),)
    assert reply.finish == "length"


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 200, "prompt_tokens_details": {"cached_tokens": 128}}, 128),
        ({"prompt_tokens": 200, "prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens": 200, "prompt_tokens_details": None}, None),
        (None, None),
    ],
)
def test_what_the_prefix_cache_held_is_read(usage: dict[str, Any] | None, told: int | None) -> None:
    """Nothing found is told apart from nothing said, as by a server that was started without the argument."""
    assert reply_of({**answer("greedy"), "usage": usage}).cached_tokens == told


def test_the_token_that_completes_a_stop_string_stays() -> None:
    """vLLM cuts the text there, not the tokens."""
    given = answer("stop_string")
    reply = reply_of(given)

    assert given["choices"][0]["stop_reason"] == "un"
    assert reply.finish == "stop"
    assert len(reply.output_ids) == len(reply.logprobs) == reply.spans[-1].stop


def test_spans_across_an_update_are_read() -> None:
    """Stamps are text on the wire, and what was never stamped is version 0."""
    recorded = answer("updated_spans")
    whole = answer("greedy")
    whole["choices"][0]["weight_versions"] = recorded["weight_versions"]
    spans = reply_of(whole).spans

    assert [span.version for span in spans] == [0, 7]
    assert (spans[0].start, spans[0].stop, spans[1].stop) == (0, spans[1].start, recorded["count"])


@pytest.mark.parametrize("name", ["aborted", "aborted_waiting"])
def test_an_aborted_request_has_what_it_made(name: str) -> None:
    """Also one that had not begun: no tokens, no spans."""
    reply = reply_of(answer(name))

    assert reply.finish == "abort"
    assert len(reply.output_ids) == len(reply.logprobs) == (reply.spans[-1].stop if reply.spans else 0)


def test_a_logprob_that_is_no_number_is_an_error() -> None:
    """JSON has no NaN, so the server writes -9999; it must not reach a trainer."""
    broken = copy.deepcopy(answer("greedy"))
    broken["choices"][0]["logprobs"]["content"][2]["logprob"] = -9999.0

    with pytest.raises(GenerationFailed, match="no number"):
        reply_of(broken)


def test_scores_are_of_the_tokens_asked_about() -> None:
    """The first token has nothing before it and scores 0."""
    ids = (5, 9, 7, 30)
    scores = scores_of(answer("score"), ids)

    assert len(scores) == 4
    assert scores[0] == 0.0
    assert all(-20 < score < 0 for score in scores[1:])
    assert score_body("s", ids, 0.5)["sampling_params"]["extra_args"] == {TEMPERATURE: 0.5}


def test_ids_inside_have_the_routes_prefix() -> None:
    """Aborting a bare id aborts nothing, and vLLM still answers 200."""
    assert id_inside("areal-1") == answer("greedy")["request_id"]


def test_images_are_sent_beside_the_tokens_as_they_are() -> None:
    """vLLM puts them in the places of the placeholders; a request without has no such field."""
    plain = call()
    shown = evolve(plain, request=evolve(plain.request, extras={IMAGES: (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")}))

    assert body_of(shown) == body_of(plain) | {
        "content_parts": [
            {"type": "image_url", "url": "data:image/png;base64,iVBORw0KGgo="},
            {"type": "image_url", "url": "data:image/jpeg;base64,/9j/"},
        ]
    }
