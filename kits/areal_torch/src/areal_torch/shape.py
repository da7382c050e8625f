"""What a decoder is made of, read from a Hugging Face configuration: for engines that build it anew.

Knows: the families of decoders and what each can be like.
Does not know: tensors, or which of these an engine builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from areal_core.contract.errors import ModelError
from areal_core.contract.train import Head

FAMILIES: Mapping[str, str] = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}
"""`model_type` of config.json -> how its transformers classes begin."""

_ENDINGS: Mapping[Head, str] = {Head.CAUSAL_LM: "ForCausalLM", Head.VALUE: "ForTokenClassification"}


@frozen(kw_only=True)
class ModelShape:
    """Sizes and switches of one decoder. `mixtures` are the layers that have experts in place of one feed-forward.

    The row that embeds the token `padding` has no gradient as such, whoever gave or generated that token; as a row of a
    tied head it has.

    Example: a Qwen3 of 28 layers has qk_norm=True, qkv_bias=False, mixtures=frozenset()
    """

    family: str
    head: Head
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    tied: bool
    padding: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    feed_forward_bias: bool = False
    qk_norm: bool = False
    mixtures: frozenset[int] = frozenset()
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    normalized_gates: bool = False

    @property
    def architecture(self) -> str:
        """Return the transformers class that reads a folder of this model."""
        return FAMILIES[self.family] + _ENDINGS[self.head]


def read_shape(path: str, config: Any, head: Head, *, engine: str) -> ModelShape:  # Any: transformers is not typed
    """Return the shape that a configuration, from `areal_torch.hf.load_config`, describes.

    Raises:
        ModelError: a family that is not here, or an option of one that is not. It names `engine`.
    """
    family = str(config.model_type)
    if family not in FAMILIES:
        raise ModelError(
            f"{engine} has no model of type {family!r}, which {path!r} is",
            why=f"it builds models itself, and has {', '.join(FAMILIES)}",
            fix="choose such a model, or the fsdp backend, which takes any model of transformers",
        )
    if config.hidden_act != "silu":
        raise ModelError(
            f"model {path!r} has the activation {config.hidden_act!r}",
            why=f"the feed-forward layers {engine} builds are SwiGLU, whose activation is silu",
            fix="use the fsdp backend, which takes any model of transformers",
        )
    attention_bias = bool(getattr(config, "attention_bias", False))
    heads = int(config.num_attention_heads)
    return ModelShape(
        family=family,
        head=head,
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=int(config.num_key_value_heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        intermediate=int(config.intermediate_size),
        norm_eps=float(config.rms_norm_eps),
        tied=bool(config.tie_word_embeddings) and head is Head.CAUSAL_LM,
        padding=_padding(config),
        qkv_bias=attention_bias or family == "qwen2",
        out_bias=attention_bias,
        feed_forward_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=family.startswith("qwen3"),
        **(_experts(config) if family == "qwen3_moe" else {}),
    )


def _padding(config: Any) -> int | None:
    """Return the token to pad with as torch's embedding counts it: a negative one from the end."""
    rows, token = int(config.vocab_size), getattr(config, "pad_token_id", None)
    return int(token) % rows if isinstance(token, int) and -rows <= token < rows else None


def _experts(config: Any) -> dict[str, Any]:  # Any: fields of ModelShape
    dense = set(config.mlp_only_layers or ())
    every = int(config.decoder_sparse_step)
    number = int(config.num_experts)
    return {
        "mixtures": frozenset(
            layer
            for layer in range(config.num_hidden_layers)
            if layer not in dense and number > 0 and (layer + 1) % every == 0
        ),
        "experts": number,
        "experts_per_token": int(config.num_experts_per_tok),
        "expert_intermediate": int(config.moe_intermediate_size),
        "normalized_gates": bool(config.norm_topk_prob),
    }
