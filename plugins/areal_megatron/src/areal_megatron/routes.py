"""Recorded routes: Megatron's routers send tokens through the experts that computed them while they were sampled.

Knows: where Megatron's router asks which experts to take (`RouterReplay`), and that a layer's attention runs before.
Does not know: how routes are recorded, or in what order passes come. Legend: T tokens, E experts, K per token.

Routes travel with the packed sequences, which attention is given and experts are not. So the attention of each
layer leaves them for its router, again where a layer is computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define
from torch import Tensor

from areal_torch.experts import LayerRoutes


def replay_routing(layer: Any, place: int) -> None:
    """Let the router of a layer take the routes its pass has, of the `place`-th layer with experts. Any: megatron."""
    routes = _RouterReplay(place=place)
    layer.self_attention.register_forward_pre_hook(routes.take, with_kwargs=True)
    layer.mlp.router.router_replay = routes


@define(kw_only=True, eq=False)
class _RouterReplay(LayerRoutes):
    """One layer's routes as Megatron's router asks for them. Any: what hooks are given."""

    def take(self, attention: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        """Keep the routes of this pass, or that there are none."""
        self.keep(keywords["packed_seq_params"].routes)

    def get_replay_topk(
        self,
        scores_TE: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        choose: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Return scores and experts of each token; rows of -1 are the router's own choice. Called by the router."""
        own_TK, chosen_TK = choose(scores_TE, topk, num_groups=num_groups, group_topk=group_topk)
        if self.routes_TK is None:
            return own_TK, chosen_TK
        chosen_TK = self.chosen(chosen_TK)
        return scores_TE.gather(1, chosen_TK), chosen_TK
