"""The one table of parameter names: here, in a model folder, and how each is cut. Load, save and send read it.

Knows: which tensors of a folder make up a parameter, and along which of its dimensions t and e cut it.
Does not know: ranks or files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import field, frozen
from torch import Tensor

from areal_torch.parameters import FolderTensor, Parameter
from areal_torch.shape import ModelShape


@frozen
class Entry:
    """One kind of parameter.

    `tensor_dim` is the dimension that tensor ranks cut, None if each has all of it. A folder name with `{expert}`
    stands for one tensor per expert, stacked here along a first dimension, which expert ranks cut.
    """

    native: str
    folder: str
    tensor_dim: int | None = field(default=None, kw_only=True)

    @property
    def stacked(self) -> bool:
        """Return whether each expert has a tensor of its own in a folder."""
        return "{expert}" in self.folder


_LAYER = "blocks.{layer}."
_FOLDER_LAYER = "model.layers.{layer}."


def _linear(native: str, folder: str, weight_dim: int) -> tuple[Entry, Entry]:
    """Return weight and bias of a layer cut along its outputs (0) or its inputs (1), whose bias is not cut then."""
    native, folder = _LAYER + native, _FOLDER_LAYER + folder
    return (
        Entry(f"{native}.weight", f"{folder}.weight", tensor_dim=weight_dim),
        Entry(f"{native}.bias", f"{folder}.bias", tensor_dim=0 if weight_dim == 0 else None),
    )


def _norm(native: str, folder: str) -> Entry:
    return Entry(f"{_LAYER}{native}.weight", f"{_FOLDER_LAYER}{folder}.weight")


TABLE: tuple[Entry, ...] = (
    Entry("embedding.weight", "model.embed_tokens.weight", tensor_dim=0),
    _norm("attention_norm", "input_layernorm"),
    *_linear("attention.query", "self_attn.q_proj", 0),
    *_linear("attention.key", "self_attn.k_proj", 0),
    *_linear("attention.value", "self_attn.v_proj", 0),
    *_linear("attention.out", "self_attn.o_proj", 1),
    _norm("attention.query_norm", "self_attn.q_norm"),
    _norm("attention.key_norm", "self_attn.k_norm"),
    _norm("feed_forward_norm", "post_attention_layernorm"),
    *_linear("feed_forward.gate", "mlp.gate_proj", 0),
    *_linear("feed_forward.up", "mlp.up_proj", 0),
    *_linear("feed_forward.down", "mlp.down_proj", 1),
    _norm("feed_forward.router", "mlp.gate"),
    Entry(_LAYER + "feed_forward.experts.gate", _FOLDER_LAYER + "mlp.experts.{expert}.gate_proj.weight", tensor_dim=1),
    Entry(_LAYER + "feed_forward.experts.up", _FOLDER_LAYER + "mlp.experts.{expert}.up_proj.weight", tensor_dim=1),
    Entry(_LAYER + "feed_forward.experts.down", _FOLDER_LAYER + "mlp.experts.{expert}.down_proj.weight", tensor_dim=2),
    Entry("norm.weight", "model.norm.weight"),
    Entry("head.weight", "lm_head.weight", tensor_dim=0),
    Entry("score.weight", "score.weight"),
    Entry("score.bias", "score.bias"),
)

_PLACES: Mapping[str, Entry] = {entry.native: entry for entry in TABLE}
_NUMBER = re.compile(r"(?<=^blocks\.)\d+")


def parameters_of(shape: ModelShape, named: Iterator[tuple[str, Tensor]]) -> list[Parameter]:
    """Describe the parameters of a whole model, in its order; a tied head is the embedding and named once."""
    return [_parameter(name, tuple(tensor.shape), shape) for name, tensor in named]


def _parameter(name: str, whole: tuple[int, ...], shape: ModelShape) -> Parameter:
    number = _NUMBER.search(name)
    layer = None if number is None else int(number[0])
    entry = _PLACES[_NUMBER.sub("{layer}", name)]
    folder = entry.folder.replace("{layer}", str(layer))
    if entry.stacked:
        each, view = whole[1:], (1, *whole[1:])
        names = [folder.replace("{expert}", str(expert)) for expert in range(shape.experts)]
        parts = [FolderTensor(name=one, shape=each, view=view, start=start) for start, one in enumerate(names)]
    else:
        parts = [FolderTensor(name=folder, shape=whole, view=whole)]
    return Parameter(
        name=name,
        kind=entry.native,
        shape=whole,
        parts=tuple(parts),
        cut=entry.tensor_dim,
        layer=layer,
        stacked=entry.stacked,
    )
