"""What a request asks for is told in the words that are claimed."""

from __future__ import annotations

import attrs
import pytest

from areal_core.contract import IMAGES, GenerationRequest, Grammar, SamplingParams, Structure
from areal_core.contract.abilities import ABILITIES, asked_of

PLAIN = GenerationRequest(request_id="r", input_ids=(5, 9))
UNCLAIMED = {"max_new_tokens", "temperature"}
"""Every engine honours these."""
VALUES = {
    "min_new_tokens": 2,
    "top_p": 0.5,
    "top_k": 3,
    "stop_token_ids": (4,),
    "stop": ("x",),
    "ignore_eos": True,
    "seed": 0,
    "min_p": 0.1,
    "frequency_penalty": -0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 0.9,
}


def test_a_plain_request_asks_for_nothing() -> None:
    """Temperature and budget are part of the role."""
    hot = attrs.evolve(PLAIN, sampling=SamplingParams(temperature=0.0, max_new_tokens=9))

    assert asked_of(PLAIN) == asked_of(hot) == ()


def test_every_sampling_parameter_that_is_set_asks_for_one_word() -> None:
    """A parameter added without a word would be dropped by engines that do not know it."""
    assert {field.name for field in attrs.fields(SamplingParams)} - UNCLAIMED == set(VALUES)
    for name, value in VALUES.items():
        asked = asked_of(attrs.evolve(PLAIN, sampling=SamplingParams(**{name: value})))  # type: ignore[arg-type]

        assert len(asked) == 1, f"{name}={value} asks for {asked}"
        assert asked[0] in ABILITIES["infer"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"structure": Structure(grammar=Grammar.REGEX, text="a")}, "sampling.structured"),
        ({"adapter": "a"}, "lora.adapters"),
        ({"extras": {IMAGES: (b"",)}}, "images"),
    ],
)
def test_what_a_request_carries_asks_for_its_word(fields: dict[str, object], word: str) -> None:
    """Beside sampling."""
    assert asked_of(attrs.evolve(PLAIN, **fields)) == (word,)  # type: ignore[arg-type]
    assert word in ABILITIES["infer"]


def test_a_structure_needs_a_text() -> None:
    """An empty one would mean no structure to some engines."""
    with pytest.raises(ValueError, match="text"):
        Structure(grammar=Grammar.REGEX, text="")
