"""The trace of experts: how it is asked for, and read from an answer.

Knows: the fields of /generate, the form of what comes back.
Does not know: how the server keeps it (`inside.experts`).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, field, frozen

from areal_core.contract.errors import GenerationFailed
from areal_core.contract.train import ROUTED_EXPERTS
from areal_serving.dialect import Call, Reply


@frozen(kw_only=True)
class Trace:
    """Which of a model's layers have experts, and how many compute a token.

    Example: Trace(num_layers=4, layers=(1, 2, 3), per_token=2)
    """

    num_layers: int
    layers: tuple[int, ...] = field(converter=tuple[int, ...])
    per_token: int

    def question(self, call: Call) -> Mapping[str, Any]:
        """Return what is added to a body: the rows from the last token of the input on. Any: JSON."""
        return {"return_routed_experts": True, "routed_experts_start_len": len(call.request.input_ids) - 1}

    def read(self, reply: Reply, answer: Mapping[str, Any]) -> Reply:
        """Return the reply with its trace. Any: JSON.

        Raises:
            GenerationFailed: the trace does not fit the tokens.
        """
        count = len(reply.output_ids)
        if not count:
            return reply
        data = bytearray(base64.b64decode(answer["meta_info"].get("routed_experts") or ""))
        if len(data) != count * self.num_layers * self.per_token * torch.int32.itemsize:
            raise GenerationFailed(f"SGLang gave a trace of {len(data)} bytes for {count} tokens", why=str(self))
        rows = torch.frombuffer(data, dtype=torch.int32).view(count, self.num_layers, self.per_token)
        return evolve(reply, token_extras={**reply.token_extras, ROUTED_EXPERTS: rows[:, list(self.layers)]})


def told(ranks: Sequence[Mapping[str, Any]]) -> Trace | None:
    """Return what the ranks say of it, None if they keep no trace. Any: JSON."""
    return Trace(**ranks[0]["experts"]) if ranks[0]["experts"] else None
