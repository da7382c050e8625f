"""Which experts a token goes through: chosen by the router, or as recorded while it was sampled.

Knows: the router's softmax, top-k, recorded rows and what makes one unusable.
Does not know: what an expert computes. Legend: T tokens, E experts, K experts per token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_core.contract.errors import BatchError
from areal_core.contract.train import ROUTED_EXPERTS


def choose(logits_TE: Tensor, per_token: int, normalize: bool, recorded_TK: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the experts of each token and their weights, [T, K] each; recorded rows of -1 are chosen here."""
    probabilities_TE = logits_TE.softmax(-1)
    chosen_TK = probabilities_TE.detach().topk(per_token, dim=-1).indices
    if recorded_TK is not None:
        chosen_TK = torch.where(recorded_TK >= 0, recorded_TK.to(torch.int64), chosen_TK)
    weights_TK = probabilities_TE.gather(1, chosen_TK)
    if normalize:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return chosen_TK, weights_TK


def check_routes(routes: Tensor, num_layers: int, num_experts: int, per_token: int) -> None:
    """Refuse a column of recorded routes that this model cannot have taken.

    Raises:
        BatchError: no expert layers, another shape or dtype, an id that is no expert, one expert twice in a row.
    """
    if not num_layers:
        raise BatchError(
            f"the batch holds {ROUTED_EXPERTS} and the model has no experts",
            why="routes of another model cannot be used again",
            fix="drop the column, or train the model that was served",
        )
    if routes.is_floating_point() or routes.dtype == torch.bool or tuple(routes.shape[1:]) != (num_layers, per_token):
        raise BatchError(
            f"{ROUTED_EXPERTS} is {routes.dtype} {list(routes.shape)}",
            why=f"this model needs int32 [tokens, {num_layers} layers with experts, {per_token} experts]",
            fix="record routes with the model that is trained",
        )
    low, high = (int(routes.min()), int(routes.max())) if routes.numel() else (0, 0)
    free = routes == -1
    if low < -1 or high >= num_experts or bool((free.any(-1) != free.all(-1)).any()):
        raise BatchError(
            f"{ROUTED_EXPERTS} runs from {low} to {high}, or has rows that are -1 in part",
            why=f"experts are 0 to {num_experts - 1}; a row is recorded whole, or is -1 throughout",
            fix="record routes with the model that is trained",
        )
    ordered = routes.sort(-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if bool(twice.any()):
        token, layer = (int(number) for number in twice.nonzero()[0][:2])
        raise BatchError(
            f"{ROUTED_EXPERTS} names one expert twice: token {token}, layer {layer}: {routes[token, layer].tolist()}",
            why="a router chooses different experts; zeros are what a buffer holds that was never written",
            fix="give -1 where nothing was recorded",
        )
