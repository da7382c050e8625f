"""What a mixture-of-experts model computes when the experts of every token are given: transformers in float64.

Knows: how to force the routers of transformers' mixtures, and to read what they choose by themselves.
Does not know: engines, packing, micro-batches: sequences are run one at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from areal_conformance.oracles.train import Oracle
from areal_conformance.outcome import HarnessError
from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS

KIND = "qwen3_moe"
FAMILIES = (KIND, "qwen2_moe", "mixtral")
"""Whose routers choose the largest of a softmax over all experts."""


class RoutedOracle(Oracle):
    """A folder of one of these families. `num_layers` have experts, `num_experts` each, `per_token` are used.

    A column `routed_experts` of a batch is obeyed.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        config = self.model.config
        self.num_experts = int(getattr(config, "num_experts", 0) or config.num_local_experts)
        self.per_token = int(config.num_experts_per_tok)
        gates = [layer.mlp.gate for layer in self.model.model.layers if hasattr(layer.mlp, "gate")]
        self.num_layers = len(gates)
        self._normalize = bool(getattr(config, "norm_topk_prob", True))  # Mixtral has no word for it
        self._given: Tensor | None = None
        self._chosen: list[Tensor] = []
        for layer, gate in enumerate(gates):
            gate.register_forward_hook(partial(self._route, layer))

    def stored(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As transformers saves a model of each family."""
        return dict(revert_weight_conversion(self.model, dict(named)))

    def logits(self, one: Batch, ids: Tensor) -> Tensor:
        """As for any model, by the experts that are given."""
        self._given = None
        if ROUTED_EXPERTS in one.tokens:
            rows = one.tokens[ROUTED_EXPERTS]
            self._given = torch.cat([rows[1:], torch.full_like(rows[:1], -1)])  # row t is of the pass over token t - 1
        return super().logits(one, ids)

    @torch.no_grad()
    def routes(self, batch: Batch) -> Tensor:
        """Return the experts the routers choose by themselves, int32 [T, layers, K]; -1 for first tokens."""
        parts = []
        for start, stop in itertools.pairwise(batch.cu_seqlens.tolist()):
            chosen = self._choices(batch.tokens["input_ids"][start:stop])
            parts += [torch.full_like(chosen[:1], -1), chosen[:-1]]
        return torch.cat(parts).to(torch.int32)

    @torch.no_grad()
    def one_sided(self, draw: Callable[[int], Batch], first: int) -> Batch:
        """Return a drawn sequence of two tokens that needs one half of the first layer's experts only, with its routes.

        The pass over its last token, which no row is about, goes there by itself.

        Args:
            draw: the sequence of a seed.
            first: the first expert of the half.
        """
        half = self.num_experts // 2
        for seed in range(200):
            batch = draw(seed)
            chosen = self._choices(batch.tokens["input_ids"])[-1, 0]
            if bool(((chosen >= first) & (chosen < first + half)).all()):
                routes = self.random_routes(batch.num_tokens, seed)
                routes[:, 0] = torch.arange(first, first + self.per_token, dtype=torch.int32)
                return batch.with_tokens(**{ROUTED_EXPERTS: routes})
        raise HarnessError(f"no sequence of 200 needs the experts {first} to {first + half - 1} only")

    def random_routes(self, num_tokens: int, seed: int) -> Tensor:
        """Return different experts for every token and layer, drawn from the seed; int32 [T, layers, K]."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(num_tokens, self.num_layers, self.num_experts, generator=generator)
        return noise.argsort(-1)[..., : self.per_token].to(torch.int32).contiguous()

    def _choices(self, ids: Tensor) -> Tensor:
        """Return the experts the routers choose by themselves in each pass: int64 [T, layers, K]."""
        self._given, self._chosen = None, []
        self.model(input_ids=ids[None])
        return torch.stack(self._chosen, dim=1)

    def _route(self, layer: int, gate: object, inputs: object, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what a router returns: logits, weights and experts of each token."""
        probabilities = out[0].softmax(-1)
        chosen = probabilities.topk(self.per_token, dim=-1).indices
        self._chosen.append(chosen)
        if self._given is not None:
            given = self._given[:, layer].to(torch.int64)
            chosen = torch.where(given < 0, chosen, given)
        weights = probabilities.gather(1, chosen)
        if self._normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return out[0], weights, chosen
