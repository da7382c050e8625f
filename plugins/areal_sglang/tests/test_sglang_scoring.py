"""Log-probs of given tokens at a temperature: what a token is drawn from is left as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from areal_sglang.inside import scoring

LOGITS = torch.arange(18.0).view(6, 3).sin()
SAMPLED, INPUTS, REQUESTS = (1, 2, 5), (0, 1, 3, 4, 5), [0, 0, 1, 2, 2, 2]
"""Of three requests the second has no input rows; the last row of the others is both."""
TEMPERATURES = torch.tensor([[0.5], [3.0], [2.0]])


def by_chunk(processor: Any, states: Tensor, sampled: Tensor, inputs: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Compute logits a chunk of rows at a time, as SGLang does; `processor` is the size of a chunk."""
    _, head, logits_of, metadata = rest
    chunks = [states[start : start + processor] for start in range(0, len(states), processor)]
    logits = torch.cat([logits_of(rows, head, metadata) for rows in chunks])
    return logits[inputs].log_softmax(-1), logits[sampled]


def computed(chunk: int, inputs: tuple[int, ...], temperatures: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log-probs of input rows and logits to draw from, through the hook."""
    metadata: Any = scoring.noted(
        lambda _cls, _batch: SimpleNamespace(sample_indices_cpu=list(SAMPLED)),
        object,
        SimpleNamespace(sampling_info=None if temperatures is None else SimpleNamespace(temperatures=temperatures)),
    )
    found: tuple[Tensor, Tensor] = scoring.at_temperature(
        by_chunk,
        chunk,
        LOGITS,
        torch.tensor(SAMPLED),
        torch.tensor(inputs, dtype=torch.int64),
        REQUESTS,
        None,
        lambda rows, *_: rows.clone(),
        metadata,
    )
    return found


@pytest.mark.parametrize("chunk", [1, 2, 4, 6])
def test_input_rows_have_the_temperature_of_their_request(chunk: int) -> None:
    """However many rows are computed at once."""
    found, _ = computed(chunk, INPUTS, TEMPERATURES)

    heat = torch.tensor([[0.5], [0.5], [2.0], [2.0], [2.0]])
    torch.testing.assert_close(found, (LOGITS[list(INPUTS)] / heat).log_softmax(-1))


@pytest.mark.parametrize("chunk", [1, 2, 4, 6])
def test_what_is_drawn_from_is_not_divided_twice(chunk: int) -> None:
    """The sampler divides it: a request that was moved back to the queue scores what it generated before, too."""
    _, sampled = computed(chunk, INPUTS, TEMPERATURES)

    assert torch.equal(sampled, LOGITS[list(SAMPLED)])


@pytest.mark.parametrize(
    ("inputs", "temperatures"), [((), TEMPERATURES), (INPUTS, None)], ids=["no input rows", "none"]
)
def test_nothing_is_changed_where_nothing_has_a_temperature(
    inputs: tuple[int, ...], temperatures: Tensor | None
) -> None:
    """Steps without input rows, and those of a warm-up."""
    found, sampled = computed(4, inputs, temperatures)

    torch.testing.assert_close(found, LOGITS[list(inputs)].log_softmax(-1))
    assert torch.equal(sampled, LOGITS[list(SAMPLED)])
