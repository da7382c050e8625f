"""The one table of parameter names: in Megatron-Core, in a model folder, and how one becomes the other.

Knows: which tensors of a folder make up a parameter, where in it they lie, and along which dimension ranks cut it.
Does not know: ranks or files. Load, send and save read it.

Megatron joins tensors that a folder has apart: queries, keys and values group by group of heads, gate and up. A
parameter's shape here has a dimension for that (`areal_torch.parameters`):

    linear_qkv  [K, q + 2, D, ...]   K key heads, of each the q queries that share it, the key, the value
    linear_fc1  [2, I, H]            gate, up
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

from attrs import frozen
from torch import nn

from areal_core.contract.train import Head
from areal_torch.parameters import FolderTensor, Parameter
from areal_torch.shape import ModelShape


@frozen(kw_only=True)
class Entry:
    """One kind of parameter.

    `sizes` are its dimensions, `cut` the one that ranks share, None if each has all of it. `folder` gives for
    each tensor of a folder how many places of the dimension `joined` it takes. The folder's tensors are cut along
    `folder_cut`.
    """

    native: str
    folder: Mapping[str, int]
    sizes: tuple[str, ...]
    joined: int = 0
    cut: int | None = None
    folder_cut: int = 0

    @property
    def of_expert(self) -> bool:
        """Return whether it belongs to one expert, which is cut and held by other ranks than the rest of its layer."""
        return "{expert}" in self.native


_LAYER = "decoder.layers.{layer}."
_FOLDER = "model.layers.{layer}."


def _plain(native: str, folder: str, sizes: str, cut: int | None = None) -> Entry:
    return Entry(native=native, folder={folder: 0}, sizes=tuple(sizes.split()), cut=cut, folder_cut=cut or 0)


def _norm(native: str, folder: str, size: str = "hidden") -> Entry:
    return _plain(f"{_LAYER}{native}.weight", f"{_FOLDER}{folder}.weight", size)


def _queries_keys_values(kind: str, *rest: str) -> Entry:
    names = {f"{_FOLDER}self_attn.{letter}_proj.{kind}": places for letter, places in (("q", 0), ("k", 1), ("v", 1))}
    return Entry(
        native=f"{_LAYER}self_attention.linear_qkv.{kind}",
        folder=names,
        sizes=("kv_heads", "group", "head_dim", *rest),
        joined=1,
        cut=0,
    )


def _gate_up(native: str, folder: str, size: str) -> Entry:
    names = {f"{folder}.{name}_proj.weight": 1 for name in ("gate", "up")}
    return Entry(native=f"{native}.linear_fc1.weight", folder=names, sizes=("two", size, "hidden"), cut=1)


_EXPERT = _LAYER + "mlp.experts.{expert}"
_FOLDER_EXPERT = _FOLDER + "mlp.experts.{expert}"

TABLE: tuple[Entry, ...] = (
    _plain("embedding.word_embeddings.weight", "model.embed_tokens.weight", "vocabulary hidden", cut=0),
    _norm("input_layernorm", "input_layernorm"),
    _queries_keys_values("weight", "hidden"),
    _queries_keys_values("bias"),
    _norm("self_attention.q_layernorm", "self_attn.q_norm", "head_dim"),
    _norm("self_attention.k_layernorm", "self_attn.k_norm", "head_dim"),
    _plain(_LAYER + "self_attention.linear_proj.weight", _FOLDER + "self_attn.o_proj.weight", "hidden attended", cut=1),
    _norm("pre_mlp_layernorm", "post_attention_layernorm"),
    _gate_up(_LAYER + "mlp", _FOLDER + "mlp", "intermediate"),
    _plain(_LAYER + "mlp.linear_fc2.weight", _FOLDER + "mlp.down_proj.weight", "hidden intermediate", cut=1),
    _plain(_LAYER + "mlp.router.weight", _FOLDER + "mlp.gate.weight", "experts hidden"),
    _gate_up(_EXPERT, _FOLDER_EXPERT, "expert_intermediate"),
    _plain(_EXPERT + ".linear_fc2.weight", _FOLDER_EXPERT + ".down_proj.weight", "hidden expert_intermediate", cut=1),
    _plain("decoder.final_layernorm.weight", "model.norm.weight", "hidden"),
    _plain("output_layer.weight", "lm_head.weight", "vocabulary hidden", cut=0),
    _plain("score.weight", "score.weight", "one hidden"),
    _plain("score.bias", "score.bias", "one"),
)

EMBEDDING, HEAD = TABLE[0].native, "output_layer.weight"

_FOLDER_CUTS: Mapping[str, int] = {entry.native: entry.folder_cut for entry in TABLE}

_FUSED = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
"""Norms that Transformer Engine has inside the linear layer behind them, by the names they have without it."""


def parameters_of(shape: ModelShape) -> list[Parameter]:
    """Describe every parameter of a whole model in the order of layers; a tied head is the embedding, named once."""
    sizes = _sizes(shape)
    before = [entry for entry in TABLE if entry.native == EMBEDDING]
    after = [entry for entry in TABLE if "{layer}" not in entry.native and entry.native != EMBEDDING]
    found = [_parameter(entry, sizes) for entry in before]
    for layer in range(shape.layers):
        for entry in TABLE:
            if "{layer}" in entry.native and _has(shape, entry, layer):
                experts = range(shape.experts) if entry.of_expert else (None,)
                found += [_parameter(entry, sizes, layer, expert) for expert in experts]
    return found + [_parameter(entry, sizes) for entry in after if _has(shape, entry, None)]


def folder_cut(parameter: Parameter) -> int:
    """Return the dimension along which a folder's tensors are cut where tensor ranks cut the parameter."""
    return _FOLDER_CUTS[parameter.kind]


def native_names(
    named: Iterator[tuple[str, nn.Parameter]], first_layer: int, first_expert: int
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of one stage under the names of the whole model, whichever layers they are built of."""
    for name, tensor in named:
        for fused, plain in _FUSED.items():
            name = name.replace(fused, plain)
        name = re.sub(r"(?<=^decoder\.layers\.)\d+", lambda number: str(int(number[0]) + first_layer), name)
        name = re.sub(r"(linear_fc\d\.weight)(\d+)$", r"local_experts.\2.\1", name)  # grouped: one parameter each
        name = re.sub(r"local_experts\.(\d+)", lambda number: str(int(number[1]) + first_expert), name)
        yield name, tensor


def _has(shape: ModelShape, entry: Entry, layer: int | None) -> bool:
    native = entry.native
    if native.startswith("score"):
        return shape.head is Head.VALUE
    if native == HEAD:
        return shape.head is Head.CAUSAL_LM and not shape.tied
    if native.endswith("linear_qkv.bias"):
        return shape.qkv_bias
    if "q_layernorm" in native or "k_layernorm" in native:
        return shape.qk_norm
    if ".mlp." in native:
        return (layer in shape.mixtures) == (entry.of_expert or ".router." in native)
    return True


def _sizes(shape: ModelShape) -> dict[str, int]:
    return {
        "vocabulary": shape.vocabulary,
        "hidden": shape.hidden,
        "kv_heads": shape.kv_heads,
        "group": shape.heads // shape.kv_heads + 2,
        "head_dim": shape.head_dim,
        "attended": shape.heads * shape.head_dim,
        "intermediate": shape.intermediate,
        "experts": shape.experts,
        "expert_intermediate": shape.expert_intermediate,
        "one": 1,
        "two": 2,
    }


def _parameter(
    entry: Entry, sizes: Mapping[str, int], layer: int | None = None, expert: int | None = None
) -> Parameter:
    def numbered(name: str) -> str:
        return name.replace("{layer}", str(layer)).replace("{expert}", str(expert))

    view = tuple(sizes[size] for size in entry.sizes)
    joined, rest = entry.joined, view[entry.joined] - sum(entry.folder.values())
    width = view[len(view) - entry.sizes.count("hidden") :]  # of a joined parameter: in a folder the rest is rows
    parts, start = [], 0
    for name, places in entry.folder.items():
        part = (*view[:joined], places or rest, *view[joined + 1 :])
        in_folder = part if len(entry.folder) == 1 else (prod(part) // prod(width), *width)
        parts.append(FolderTensor(name=numbered(name), shape=in_folder, view=part, start=start))
        start += part[joined]
    return Parameter(
        name=numbered(entry.native),
        kind=entry.native,
        shape=view,
        parts=tuple(parts),
        joined=joined,
        cut=entry.cut,
        layer=layer,
        expert=expert,
    )
