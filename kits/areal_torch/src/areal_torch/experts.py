"""Recorded routes in training: a token goes through the experts that computed it while it was sampled.

Knows: the routers of transformers' mixtures of experts, what makes a column of routes unfit.
Does not know: how routes are recorded, or what an expert computes. Legend: T tokens, L layers, E experts, K per token.

Decoder layers of transformers hand their keyword arguments to their attention and to nothing else. So each layer's
attention, which runs before its experts, and again where activations are recomputed, leaves the routes for its router.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor, nn

from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.train import ROUTED_EXPERTS
from areal_torch.attention import Packing
from areal_torch.hf import Model

KEYWORD = "routes"
"""The keyword under which a micro-batch's routes travel through the model, int64 [T, L, K]."""

_ROUTERS = ("Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter", "OlmoeTopKRouter", "FlexOlmoTopKRouter", "MixtralTopKRouter")
"""Routers that choose the largest of a softmax over all experts; Mixtral always normalises, the others if told to."""


@frozen(kw_only=True)
class Experts:
    """What routes of a model look like. No layers: the model has no experts."""

    num_layers: int = 0
    num_experts: int = 0
    per_token: int = 0
    unknown: str = ""
    """The class of a router whose choice cannot be replaced."""


def replay_routing(model: Model) -> Experts:
    """Let the routers of a model take the routes its forward pass is given as `routes`; without them they choose."""
    layers = [module for module in model.modules() if _router_of(module) is not None]
    if not layers:
        return Experts(unknown=_unknown_router(model))
    for place, layer in enumerate(layers):
        router = _router_of(layer)
        routes = _RouterHook(place=place)
        layer.self_attn.register_forward_pre_hook(routes.take, with_kwargs=True)
        router.register_forward_hook(routes.route)
    return Experts(num_layers=len(layers), num_experts=router.num_experts, per_token=router.top_k)


def routes_of(batch: Batch, packing: Packing) -> dict[str, Tensor]:
    """Return the keyword for the model's forward pass, or none: routes of the tokens this rank's layers see.

    Row t of the column is of the pass over token t - 1.
    """
    if ROUTED_EXPERTS not in batch.tokens:
        return {}
    column = batch.tokens[ROUTED_EXPERTS].to(torch.int64)
    passes = column.new_full((len(packing.positions), *column.shape[1:]), -1)
    passes[packing.predicted - 1] = column[packing.predicted]
    return {KEYWORD: passes[packing.part]}


def check_routes(batch: Batch, experts: Experts) -> None:
    """Refuse routes that this model cannot have taken.

    Raises:
        BatchError: no experts, another shape or dtype, an expert there is not, one twice, or a row that is -1 in part.
        CapabilityError: the model's routers are of a kind that cannot be told.
    """
    if ROUTED_EXPERTS not in batch.tokens:
        return
    if experts.unknown:
        raise CapabilityError(
            f"recorded routes cannot be given to a {experts.unknown}",
            why=f"these routers take them: {', '.join(_ROUTERS)}",
            fix=f"drop the column {ROUTED_EXPERTS!r} to route freely",
        )
    if not experts.num_layers:
        raise BatchError(
            f"the batch holds {ROUTED_EXPERTS!r}, and the model has no experts",
            why="the routes were recorded by another model",
            fix="train the model that was served, or drop the column",
        )
    _check_shape(batch.tokens[ROUTED_EXPERTS], experts)
    _check_rows(batch.tokens[ROUTED_EXPERTS], experts)


def _check_shape(routes: Tensor, experts: Experts) -> None:
    wanted = (experts.num_layers, experts.per_token)
    whole = not (routes.is_floating_point() or routes.is_complex() or routes.dtype == torch.bool)
    if tuple(routes.shape[1:]) != wanted or not whole:
        raise BatchError(
            f"{ROUTED_EXPERTS} is {routes.dtype} {list(routes.shape)}",
            why=f"this model needs int32 [tokens, {wanted[0]} layers with experts, {wanted[1]} experts per token]",
            fix="record routes with the model that is trained",
        )


def _check_rows(routes_TLK: Tensor, experts: Experts) -> None:
    free_TLK = routes_TLK == -1
    ordered_TLK = routes_TLK.sort(-1).values
    twice = (ordered_TLK[..., 1:] == ordered_TLK[..., :-1]) & (ordered_TLK[..., 1:] != -1)
    unfit = {
        "names an expert that does not exist": ((routes_TLK < -1) | (routes_TLK >= experts.num_experts)).any(-1),
        "is -1 in part": free_TLK.any(-1) != free_TLK.all(-1),
        "names one expert twice": twice.any(-1),
    }
    for what, rows in unfit.items():
        if bool(rows.any()):
            token, layer = (int(number) for number in rows.nonzero()[0])
            raise BatchError(
                f"{ROUTED_EXPERTS} {what}: token {token}, layer {layer}: {routes_TLK[token, layer].tolist()}",
                why=f"a row holds different experts from 0 to {experts.num_experts - 1}, or is -1 throughout",
                fix="record routes with the model that is trained, and give -1 where nothing was recorded",
            )


@define(kw_only=True, eq=False)
class LayerRoutes:
    """Holds the routes of the `place`-th layer with experts, from its attention to its router.

    For engines with routers of their own: call `keep` where a pass over the layer begins, again where it is recomputed,
    and `chosen` where the router picks its experts.
    """

    place: int
    routes_TK: Tensor | None = None

    def keep(self, routes_TLK: Tensor | None) -> None:
        """Keep the routes of this pass, or that there are none."""
        self.routes_TK = None if routes_TLK is None else routes_TLK[:, self.place]

    def chosen(self, own_TK: Tensor) -> Tensor:
        """Return the experts of each token: those recorded, and the router's own choice in rows of -1."""
        return own_TK if self.routes_TK is None else torch.where(self.routes_TK < 0, own_TK, self.routes_TK)


@define(kw_only=True, eq=False)
class _RouterHook(LayerRoutes):
    """Hooks of transformers' modules. Any, here and below: what hooks are given."""

    def take(self, attention: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        """Keep the routes of this pass, or that there are none."""
        self.keep(keywords.get(KEYWORD))

    def route(self, router: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, weights and experts of each token; rows of -1 are the router's own choice."""
        if self.routes_TK is None:
            return output
        logits_TE, own_TK, chosen_TK = output
        chosen_TK = self.chosen(chosen_TK)
        weights_TK = logits_TE.softmax(-1, dtype=torch.float32).gather(1, chosen_TK)
        if getattr(router, "norm_topk_prob", True):
            weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        return logits_TE, weights_TK.to(own_TK.dtype), chosen_TK


def _router_of(layer: nn.Module) -> Any:
    """Return the router of a decoder layer, None for any other module. Any: not typed."""
    mlp = getattr(layer, "mlp", None)
    router = getattr(mlp, "gate", None)
    return router if type(router).__name__ in _ROUTERS and hasattr(layer, "self_attn") else None


def _unknown_router(model: Model) -> str:
    """Return the class of a router that is none of `_ROUTERS`, empty for a model without experts."""
    config = model.config.get_text_config()
    counts = [getattr(config, name, 0) for name in ("num_experts", "num_local_experts", "n_routed_experts")]
    if not any(counts):
        return ""
    names = [type(module).__name__ for module in model.modules()]
    return next((name for name in names if "Router" in name), f"router of {type(model).__name__}")
