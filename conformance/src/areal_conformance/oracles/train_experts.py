"""What a mixture-of-experts model computes when the experts of every token are given: transformers in float64.

Knows: how to force the routers of transformers' qwen3_moe, and to read what they choose by themselves.
Does not know: engines, packing, micro-batches: sequences are run one at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_conformance.benches.models import quiet
from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS, Objective, Output

KIND = "qwen3_moe"


class RoutedOracle:
    """A qwen3_moe folder. `num_layers` have experts, `num_experts` each, `per_token` are used."""

    def __init__(self, folder: Path) -> None:
        quiet()
        self.model: Any = AutoModelForCausalLM.from_pretrained(  # Any: transformers is not typed here
            folder,
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
            local_files_only=True,
        ).eval()
        config = self.model.config
        self.num_experts, self.per_token = int(config.num_experts), int(config.num_experts_per_tok)
        gates = [layer.mlp.gate for layer in self.model.model.layers if hasattr(layer.mlp, "gate")]
        self.num_layers = len(gates)
        self._normalize = bool(config.norm_topk_prob)
        self._given: Tensor | None = None
        self._chosen: list[Tensor] = []
        for layer, gate in enumerate(gates):
            gate.register_forward_hook(partial(self._route, layer))

    def columns(self, batch: Batch) -> dict[Output, Tensor]:
        """Return log-probs and entropy, float64 [T] with gradient; a column `routed_experts` is obeyed."""
        parts: dict[Output, list[Tensor]] = {Output.LOGPROBS: [], Output.ENTROPY: []}
        for start, stop in itertools.pairwise(batch.cu_seqlens.tolist()):
            ids = batch.tokens["input_ids"][start:stop]
            self._given = None
            if ROUTED_EXPERTS in batch.tokens:
                rows = batch.tokens[ROUTED_EXPERTS][start + 1 : stop]  # row t is of the pass over token t - 1
                self._given = torch.cat([rows, torch.full_like(batch.tokens[ROUTED_EXPERTS][:1], -1)])
            log_p = self.model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
            mask = batch.tokens["loss_mask"][start + 1 : stop]
            zero = torch.zeros(1, dtype=torch.float64)
            parts[Output.LOGPROBS].append(torch.cat([zero, log_p.gather(1, ids[1:, None]).squeeze(1) * mask]))
            parts[Output.ENTROPY].append(torch.cat([zero, -(log_p.exp() * log_p).sum(-1) * mask]))
        return {name: torch.cat(column) for name, column in parts.items()}

    @torch.no_grad()
    def routes(self, batch: Batch) -> Tensor:
        """Return the experts the routers choose by themselves, int32 [T, layers, K]; -1 for first tokens."""
        parts = []
        for start, stop in itertools.pairwise(batch.cu_seqlens.tolist()):
            self._given, self._chosen = None, []
            self.model(input_ids=batch.tokens["input_ids"][start:stop][None])
            chosen = torch.stack(self._chosen, dim=1)
            parts += [torch.full_like(chosen[:1], -1), chosen[:-1]]
        return torch.cat(parts).to(torch.int32)

    def random_routes(self, num_tokens: int, seed: int) -> Tensor:
        """Return different experts for every token and layer, drawn from the seed; int32 [T, layers, K]."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(num_tokens, self.num_layers, self.num_experts, generator=generator)
        return noise.argsort(-1)[..., : self.per_token].to(torch.int32).contiguous()

    def gradient(self, batch: Batch, objective: Objective) -> dict[str, Tensor]:
        """Return the gradient of the whole batch's loss by the names a model folder has."""
        self.model.zero_grad(set_to_none=True)
        columns = {str(name): column for name, column in self.columns(batch).items()}
        loss, _ = objective.loss(columns, batch, objective.normalizer(batch).double())
        loss.backward()  # type: ignore[no-untyped-call]
        found = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.model.named_parameters()
        }
        return in_folder(found)

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


def in_folder(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return views of parameters under the names a folder has: one tensor per expert, where they are fused."""
    named: dict[str, Tensor] = {}
    for name, tensor in parameters.items():
        prefix, fused, kind = name.rpartition("experts.")
        if not fused:
            named[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            halves = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
            kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
            named |= {f"{prefix}experts.{expert}.{k}.weight": half for k, half in zip(kinds, halves, strict=True)}
    return named
