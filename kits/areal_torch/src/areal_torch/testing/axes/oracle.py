"""Three steps with transformers and torch.optim, one sequence at a time: what every layout must come to.

Knows: the batch all layouts train on, and the plain loop.
Does not know: any engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS
from areal_torch.experts import replay_routing
from areal_torch.hf import folder_tensors
from areal_torch.testing.batches import make_batch, with_padding

SHAPES = [(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2), (1, 1), (5, 7)]
NUM_STEPS = 3
EPS = 1e-3
"""Adam's `eps`. With its own 1e-8 a gradient of next to nothing is stepped by its sign, which is rounding."""


def full_batch() -> Batch:
    """Return eight sequences with advantages and returns, and what tiny models pad with among their tokens."""
    batch = make_batch(SHAPES)
    noise = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3))
    return with_padding(batch).with_tokens(advantages=noise, returns=noise.flip(0))


def routed(batch: Batch) -> Batch:
    """Return the batch with different experts drawn for every token and layer, and none for some tokens."""
    noise = torch.rand(batch.num_tokens, 2, 4, generator=torch.Generator().manual_seed(4))
    routes = noise.argsort(-1)[..., :2].to(torch.int32).contiguous()
    routes[::5] = -1
    return batch.with_tokens(**{ROUTED_EXPERTS: routes})


@frozen(kw_only=True, eq=False)
class Oracle:
    """What the loop found: columns and gradients of the first step, loss and norm of each; after the last, log-probs
    and weights."""

    logprobs: list[float]
    entropy: list[float]
    steps: list[tuple[float, float]]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    after: list[float]

    @classmethod
    def of(cls, path: Path, *, recorded: bool = False) -> Oracle:
        """Train the model of a folder, if `recorded` on drawn routes.

        Any route is the core's to move into transformers' routers, which its own tests prove.
        """
        from transformers import AutoModelForCausalLM

        batch = routed(full_batch()) if recorded else full_batch()
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)  # transformers is not typed here
        if recorded:
            replay_routing(model)
        adam = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=EPS)
        scores = torch.zeros(2, batch.num_tokens)
        steps: list[tuple[float, float]] = []
        gradients: dict[str, Tensor] = {}
        for number in range(NUM_STEPS):
            loss = _loss(model, batch, scores)
            loss.backward()  # type: ignore[no-untyped-call]
            if number == 0:
                first = scores.clone()
                gradients = _as_folder(model, {name: each.grad for name, each in model.named_parameters()})
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.append((float(loss.detach()), float(norm)))
            adam.step()
            adam.zero_grad()
        with torch.no_grad():
            _loss(model, batch, scores)
        weights = _as_folder(model, {name: each.detach() for name, each in model.named_parameters()})
        return cls(
            logprobs=first[0].tolist(),
            entropy=first[1].tolist(),
            steps=steps,
            gradients=gradients,
            weights=weights,
            after=scores[0].tolist(),
        )


def _loss(model: Any, batch: Batch, scores: Tensor) -> Tensor:
    """Return the policy gradient's loss; write log-probs and entropy of trained tokens into `scores` [2, T]."""
    loss = torch.zeros(())
    for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        ids, mask = batch.tokens["input_ids"][start:end], batch.tokens["loss_mask"][start:end][1:]
        routes = {}
        if ROUTED_EXPERTS in batch.tokens:  # row t is of the pass over token t - 1
            column = batch.tokens[ROUTED_EXPERTS][start:end].to(torch.int64)
            routes["routes"] = torch.cat([column[1:], torch.full_like(column[:1], -1)])
        log_p = model(input_ids=ids[None], **routes).logits[0, :-1].log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        chosen = log_p.gather(1, ids[1:, None])[:, 0]
        scores[:, start + 1 : end] = torch.stack([chosen, entropy]).detach() * mask
        gain = batch.tokens["advantages"][start:end][1:] * chosen + 0.01 * entropy
        loss = loss - gain[mask].sum() / batch.tokens["loss_mask"].sum()
    return loss


def _as_folder(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters under the names of a folder; transformers fuses gate and up of all experts."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found |= {key: each.clone() for key, each in folder_tensors(model, name, tensor).items()}
    return found
