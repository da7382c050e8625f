"""How a transformers model is cut over tensor ranks, by the plan that comes with it.

Knows: the words of transformers' plans, which parameter of each lies where, whose gradient is a part only.
Does not know: FSDP, which cuts what is left over data ranks; attention, which sees fewer heads.

    {"model.layers.*.self_attn.q_proj": "colwise", "model.layers.*.self_attn.o_proj": "rowwise", ...}

Every parameter becomes a DTensor on the mesh of tensor ranks, also those that all of them hold. Linear layers
are cut by torch's own styles; all other modules compute with plain local tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from areal_core.contract.errors import ModelError
from areal_torch.hf import Model
from areal_torch.layout import check_divides, check_shares, share_of
from areal_torch.lora import LoraLinear


class Cut(StrEnum):
    """What becomes of a module's parameters."""

    COLUMN = "rows of a weight shared out, and with them what the layer puts out"
    ROW = "columns of a weight shared out, and with them what the layer takes"
    VOCABULARY = "an embedding's rows shared out"
    HEAD = "the rows that become logits shared out"
    EXPERTS = "experts shared out"
    WHOLE = "on every rank, which all do the same with it"
    PARTIAL = "on every rank, each of which applies it to its own heads"


_WORDS: Mapping[str, Cut] = {
    "colwise": Cut.COLUMN,
    "rowwise": Cut.ROW,
    "embedding_rowwise": Cut.VOCABULARY,
    "replicated_with_grad_allreduce": Cut.PARTIAL,
    "moe_tp_experts": Cut.EXPERTS,
    "replicate": Cut.WHOLE,
}
_OF_ENDS = {"embedding_rowwise", "colwise_gather_output", "colwise_rep"}
"""What is said of the embedding and the head, which are shared out whatever a plan says."""
_PER_HEAD = re.compile(r"\.[qk]_(norm|layernorm)$")
"""Norms of heads, which plans of older versions of transformers do not name."""


def cuts(model: Model) -> dict[str, Cut]:
    """Return what becomes of each module that has parameters of its own.

    Raises:
        ModelError: the model has no plan, or one that asks for what is not done here.
    """
    plan: Mapping[str, str] = getattr(model, "_tp_plan", None) or {}
    if set(plan.values()) <= _OF_ENDS:
        raise _refused(model, "it comes with no plan for that")
    found = {name: _cut_of(model, plan, name, module) for name, module in _owners(model)}
    in_parts = {name.rpartition(".")[0]: name for name, cut in found.items() if cut is Cut.COLUMN}
    for name, cut in found.items():
        beside = in_parts.get(name.rpartition(".")[0])
        if cut is Cut.WHOLE and beside and _planned(plan, name) is None:
            raise _refused(model, f"its plan cuts {beside} and says nothing about {name}")
    return found


def check(model: Model, degree: int) -> None:
    """Refuse a model that cannot be cut into so many parts.

    Raises:
        ModelError: its plan asks for what is not done here.
        LayoutError: heads, experts or the width of a layer do not divide, or a rank would have no word.
    """
    found = cuts(model)
    text = model.config.get_text_config()
    heads = int(text.num_attention_heads)
    check_divides("t", degree, heads, "attention heads")
    check_divides("t", degree, int(getattr(text, "num_key_value_heads", None) or heads), "key and value heads")
    for name, cut in found.items():
        module = model.get_submodule(name)
        if cut is Cut.COLUMN:
            check_divides("t", degree, int(module.out_features), f"rows of {name}")
        elif cut is Cut.ROW:
            check_divides("t", degree, int(module.in_features), f"columns of {name}")
        elif cut is Cut.EXPERTS:
            check_divides("t", degree, int(module.num_experts), "experts")
        elif cut in (Cut.VOCABULARY, Cut.HEAD):
            check_shares("t", degree, int(module.weight.shape[0]), "vocabulary entries")


def share_out(model: Model, mesh: DeviceMesh) -> None:
    """Cut every parameter of a checked model over `mesh` in place."""
    shared = _shared(model)
    styles: dict[str, ParallelStyle] = {}
    adapters: dict[tuple[nn.Module, str], nn.Parameter] = {}
    for name, cut in cuts(model).items():
        module = model.get_submodule(name)
        match cut:
            case Cut.COLUMN:
                styles[name] = ColwiseParallel()
                adapters |= _taken_off(module, mesh, {"lora_A": Replicate(), "lora_B": Shard(0)})
            case Cut.ROW:
                styles[name] = RowwiseParallel()
                adapters |= _taken_off(module, mesh, {"lora_A": Shard(1), "lora_B": Replicate()})
            case Cut.VOCABULARY:
                _distribute(module, mesh, Shard(0))
                _compute_with_parts(module, Shard(0))
                assert isinstance(module, nn.Embedding)
                _share_words_out(module, mesh)
            case Cut.HEAD:
                _distribute(module, mesh, Shard(0))  # only its weight is used, by logprobs_and_entropy
            case Cut.EXPERTS:
                _distribute(module, mesh, Shard(0))
                _compute_with_parts(module, Shard(0))
                _share_tokens_out(module, mesh)
            case Cut.WHOLE | Cut.PARTIAL:
                _distribute(module, mesh, Replicate())
                _compute_with_parts(module, Partial() if cut is Cut.PARTIAL else Replicate())
    parallelize_module(model, mesh, styles)
    for (module, leaf), adapter in adapters.items():
        module.register_parameter(leaf, adapter)
    for (carrier, leaf), others in shared.items():
        for other, other_leaf in others:
            other._parameters[other_leaf] = carrier._parameters[leaf]


def _cut_of(model: Model, plan: Mapping[str, str], name: str, module: nn.Module) -> Cut:
    if module is model.get_input_embeddings() and isinstance(module, nn.Embedding):
        return Cut.VOCABULARY
    if module is model.get_output_embeddings():
        return Cut.HEAD
    word = _planned(plan, name)
    if word is None and _PER_HEAD.search(name):
        return Cut.PARTIAL
    inside = [_planned(plan, f"{name}.{leaf}") for leaf, _ in module.named_parameters(recurse=False)]
    odd = None if word == "moe_tp_experts" else next((part for part in inside if part is not None), None)
    cut = Cut.WHOLE if word is None else _WORDS.get(word)
    if cut is None or odd is not None:
        raise _refused(model, f"its plan says {odd or word!r} about {name}")
    if cut in (Cut.COLUMN, Cut.ROW) and not isinstance(module, nn.Linear):
        raise _refused(model, f"its plan says {word!r} about {name}, a {type(module).__name__}")
    return cut


def _owners(model: Model) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if any(parameter is not None for parameter in module._parameters.values()):
            yield name, module


def _planned(plan: Mapping[str, str], name: str) -> str | None:
    """Return the word about a module or parameter; a plan has a star for the number of a layer."""
    return plan.get(name) or plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))


def _refused(model: Model, why: str) -> ModelError:
    return ModelError(
        f"{type(model).__name__} cannot be sharded over tensor ranks",
        why=f"{why}; supported are {', '.join(_WORDS)}",
        fix="leave t out of the layout: d and c work with every model",
    )


def _shared(model: Model) -> dict[tuple[nn.Module, str], list[tuple[nn.Module, str]]]:
    """Return each parameter that several modules hold: where it is first, and where else. Cutting would part them."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for _, module in _owners(model):
        for leaf, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, leaf))
    return {first: others for first, *others in places.values() if others}


def _distribute(module: nn.Module, mesh: DeviceMesh, placement: Placement) -> None:
    for leaf, parameter in list(module.named_parameters(recurse=False)):
        module._parameters[leaf] = _distributed(parameter, mesh, placement)


def _distributed(parameter: nn.Parameter, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
    part = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


def _taken_off(
    layer: nn.Module, mesh: DeviceMesh, placements: Mapping[str, Placement]
) -> dict[tuple[nn.Module, str], nn.Parameter]:
    """Cut the adapter of a layer, if it has one, and take it off: torch's styles cut every parameter they find alike.

    A is cut with what the layer takes, B with what it puts out; the other is on every rank.
    """
    taken: dict[tuple[nn.Module, str], nn.Parameter] = {}
    if isinstance(layer, LoraLinear):
        for leaf, placement in placements.items():
            taken[layer, leaf] = _distributed(layer.get_parameter(leaf), mesh, placement)
            delattr(layer, leaf)
    return taken


def _compute_with_parts(module: nn.Module, gradient: Placement) -> None:
    """Let a module's own code read this rank's part of each parameter, a plain tensor, whose gradient is `gradient`.

    Properties of a class of its own, for attributes win over what torch holds under the same name.
    """
    own = type(module)
    parts = {leaf: property(_part(leaf, gradient)) for leaf, _ in module.named_parameters(recurse=False)}
    module.__class__ = type(own.__name__, (own,), {"__module__": own.__module__, **parts})


def _part(leaf: str, gradient: Placement) -> Callable[[nn.Module], Tensor]:
    def read(module: nn.Module) -> Tensor:
        parameter: Any = module._parameters[leaf]  # Any: a DTensor, which torch does not type as a parameter
        if parameter.device_mesh.ndim > 1:  # FSDP asks for its shard; a layer that runs has been gathered
            shard: Tensor = parameter
            return shard
        part: Tensor = parameter.to_local(grad_placements=[gradient])
        return part

    return read


def _share_words_out(embedding: nn.Embedding, mesh: DeviceMesh) -> None:
    """Look up this rank's words only, and add up what all ranks found; torch's own style gathers whole gradients."""
    compute: Callable[[Tensor], Tensor] = embedding.forward
    share = share_of(embedding.num_embeddings, mesh.size(), mesh.get_local_rank())
    first, count = share.start, len(share)
    if embedding.padding_idx is not None:  # on every other rank the row of that number is a word
        embedding.padding_idx = embedding.padding_idx - first if embedding.padding_idx in share else None

    def forward(ids: Tensor) -> Tensor:
        own = ids - first
        is_own = (own >= 0) & (own < count)
        return _total(compute(own * is_own) * is_own[..., None], mesh)

    held: Any = embedding  # Any: a method is replaced
    held.forward = forward


def _share_tokens_out(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Give a layer of experts only the tokens routed to this rank's, and add up what all ranks return.

    Every rank has all tokens, so none travels. Gradients of tokens and routing weights are parts on each.
    """
    compute: Callable[[Tensor, Tensor, Tensor], Tensor] = experts.forward
    held: Any = experts  # Any: a module of transformers
    count = held.num_experts // mesh.size()
    first = mesh.get_local_rank() * count
    held.num_experts = count

    def forward(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        tokens, routing = (_everywhere(tensor, mesh) for tensor in (hidden, weights))
        row, place = ((chosen >= first) & (chosen < first + count)).nonzero(as_tuple=True)
        if not len(row):  # each parameter has a place in the backward pass, on all data ranks
            found = compute(tokens[:1], torch.zeros_like(chosen[:1, :1]), routing[:1, :1] * 0.0)
            row = torch.zeros_like(chosen[:1, 0])
        else:
            found = compute(tokens[row], chosen[row, place][:, None] - first, routing[row, place][:, None])
        return _total(torch.zeros_like(tokens).index_add(0, row, found.to(tokens.dtype)), mesh)

    held.forward = forward


def _everywhere(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return a tensor that all ranks hold; the gradient is the sum of theirs."""
    same: Tensor = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False).to_local(
        grad_placements=[Partial()]
    )
    return same


def _total(part: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the sum over all ranks, on each; the gradient of the sum is that of each part."""
    total: Tensor = DTensor.from_local(part, mesh, [Partial()], run_check=False).full_tensor()
    return total
