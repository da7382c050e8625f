"""Which experts the tokens of a sequence go through, as transformers' own routers choose.

Knows: router logits of a model folder, under its own weights or others.
Does not know: engines, or how a trace is laid out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from transformers import AutoModelForCausalLM

CLOSE = 1e-4
"""Router logits closer than this may be ranked either way in float32."""


@frozen
class Routes:
    """Sorted experts [L, layers, experts per token], and whether each choice is beyond rounding [L, layers]."""

    experts: Tensor
    decided: Tensor


class Routers:
    """A model folder with experts, loaded once."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(  # Any: transformers is not typed
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.per_token: int = self._model.config.num_experts_per_tok

    @torch.no_grad()
    def routes(self, ids: Sequence[int], weights: Mapping[str, Tensor] | None = None) -> Routes:
        """Return the experts of every position of a sequence. `weights` go by the model's own parameter names."""
        batch = torch.tensor([list(ids)])
        given = dict(self._model.named_parameters()) if weights is None else dict(weights)
        arguments = {"output_router_logits": True, "use_cache": False}
        output = torch.func.functional_call(self._model, given, (batch,), arguments)
        scores = torch.stack([layer.float() for layer in output.router_logits], 1)
        ranked, order = scores.sort(-1, descending=True)
        border = ranked[..., self.per_token - 1] - ranked[..., self.per_token]
        return Routes(order[..., : self.per_token].sort(-1).values, border > CLOSE)
