"""How the trace of experts is asked for, and read from what SGLang answers."""

from __future__ import annotations

import base64

import pytest
import torch

from areal_core.contract.errors import GenerationFailed
from areal_core.contract.train import ROUTED_EXPERTS
from areal_serving.dialect import Call, Reply
from areal_sglang.trace import Trace, told
from areal_torch.testing.serving import ask

FORM = Trace(num_layers=3, layers=(1, 2), per_token=2)
"""Of a model whose first layer is dense."""


def reply(count: int) -> Reply:
    """Return a reply of that many tokens."""
    return Reply(output_ids=(5,) * count, logprobs=(-1.0,) * count, spans=(), finish="length")


def answer(rows: torch.Tensor | None) -> dict[str, dict[str, str]]:
    """Return an answer with these rows [T, layers, experts] as SGLang writes them."""
    return {"meta_info": {} if rows is None else {"routed_experts": base64.b64encode(rows.numpy().tobytes()).decode()}}


def test_rows_begin_with_the_token_before_the_output() -> None:
    """The experts of the last input token drew the first output token."""
    request = ask(3, 4, 5, num_prior=1)
    call = Call(request=request, server_id="a", max_tokens=1, min_tokens=0, seed=None, end_ids=(), cache_space="")

    assert FORM.question(call) == {"return_routed_experts": True, "routed_experts_start_len": 2}


def test_layers_without_experts_have_no_column() -> None:
    """SGLang has one for every layer, zeros where there are none."""
    rows = torch.arange(4 * 3 * 2, dtype=torch.int32).view(4, 3, 2)
    read = FORM.read(reply(4), answer(rows)).token_extras[ROUTED_EXPERTS]

    assert read.dtype == torch.int32
    assert torch.equal(rows[:, 1:], read)


@pytest.mark.parametrize("num_rows", [0, 3, 5])
def test_a_row_short_or_over_is_an_error(num_rows: int) -> None:
    """Whoever trains on it would replay the experts of other tokens."""
    rows = torch.zeros(num_rows, 3, 2, dtype=torch.int32)

    with pytest.raises(GenerationFailed, match="for 4 tokens"):
        FORM.read(reply(4), answer(rows))


def test_no_tokens_have_no_trace() -> None:
    """SGLang gives none to what ended before it began."""
    assert FORM.read(reply(0), answer(None)).token_extras == {}


def test_a_model_without_experts_is_not_asked() -> None:
    """Nor one whose server keeps no record."""
    assert told([{"experts": {}}]) is None
    assert told([{"experts": {"num_layers": 3, "layers": [1, 2], "per_token": 2}}] * 2) == FORM
