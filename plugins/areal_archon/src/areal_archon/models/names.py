"""The one table of parameter names: here, in a model folder, and how each is cut. Load, save and send read it.

Knows: which tensors of a folder make up a parameter, and along which of its dimensions t and e cut it.
Does not know: ranks or files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import field, frozen
from torch import Tensor

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


@frozen(kw_only=True)
class Parameter:
    """One parameter of a model: its name and whole shape here, and the tensors of a folder that make it up.

    Example: Parameter(name="norm.weight", shape=(64,), folder_names=("model.norm.weight",), entry=..., layer=None)
    """

    name: str
    shape: tuple[int, ...]
    folder_names: tuple[str, ...]
    entry: Entry
    layer: int | None

    @property
    def folder_shape(self) -> tuple[int, ...]:
        """Return the shape each of the folder's tensors has."""
        return self.shape[1:] if self.entry.stacked else self.shape

    def split(self, whole: Tensor) -> dict[str, Tensor]:
        """Return the parameter as a folder has it. Views, not copies."""
        parts = whole.unbind(0) if self.entry.stacked else (whole,)
        return dict(zip(self.folder_names, parts, strict=True))


def parameters_of(shape: ModelShape, named: Iterator[tuple[str, Tensor]]) -> list[Parameter]:
    """Describe the parameters of a whole model, in its order; a tied head is the embedding and named once."""
    found = []
    for name, tensor in named:
        number = _NUMBER.search(name)
        layer = None if number is None else int(number[0])
        entry = _PLACES[_NUMBER.sub("{layer}", name)]
        folder = entry.folder.replace("{layer}", str(layer))
        names = [folder.replace("{expert}", str(n)) for n in range(shape.experts)] if entry.stacked else [folder]
        found.append(
            Parameter(name=name, shape=tuple(tensor.shape), folder_names=tuple(names), entry=entry, layer=layer)
        )
    return found
