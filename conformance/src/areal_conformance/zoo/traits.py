"""What configurations of models may be unlike each other in: an axis for each thing, with the values it may have.

    eps=coarse theta=small place=old rope=yarn heads=grouped head_dim=wide ...

Knows: axes shared by families built like Llama, and which values a backend must claim.
Does not know: families (`architectures`), or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

CONTEXT, TRAINED_CONTEXT = 128, 32
"""Positions of a drawn model, and those before its rotary positions were scaled: sequences are longer than these."""

OPTIONAL: Mapping[tuple[str, str], str] = {
    ("rope", "linear"): "rope.linear",
    ("rope", "dynamic"): "rope.dynamic",
    ("rope", "yarn"): "rope.yarn",
    ("rope", "llama3"): "rope.llama3",
    ("rope", "longrope"): "rope.longrope",
    ("window", "slides"): "window",
    ("activation", "gelu"): "activation",
    ("caps", "soft"): "soft_caps",
    ("caps", "scores"): "soft_caps",
    ("caps", "logits"): "soft_caps",
    ("bias", "attention"): "biases",
    ("bias", "mlp"): "biases",
    ("bias", "both"): "biases",
}
"""Axis and value -> the trait an adapter must name for it (`Adapter.traits`). All other values need no claim."""
TRAITS = tuple(dict.fromkeys(OPTIONAL.values()))


@frozen
class Drawn:
    """One model of the zoo: a family, and a value on each of its axes.

    Example: Drawn("llama", {"eps": "usual", "theta": "small", "place": "old"}, seed=3)
    """

    architecture: str
    values: Mapping[str, str]
    seed: int = 0
    head_dim: int = 0
    """The size of every head, where kernels take no other."""

    def __str__(self) -> str:
        return f"{self.architecture} ({' '.join(f'{axis}={value}' for axis, value in self.values.items())})"

    def __getitem__(self, axis: str) -> str:
        return self.values.get(axis, "")

    @property
    def traits(self) -> frozenset[str]:
        """Return what a backend must claim to take it."""
        return frozenset(OPTIONAL[pair] for pair in self.values.items() if pair in OPTIONAL)


COMMON: Mapping[str, tuple[str, ...]] = {
    "heads": ("grouped", "one", "each", "odd"),
    "head_dim": ("divided", "wide"),
    "eps": ("usual", "small", "coarse"),
    "theta": ("usual", "small", "large"),
    "place": ("new", "old", "old_type"),
    "rope": ("default", "linear", "yarn", "llama3", "dynamic"),
    "tied": ("untied", "tied"),
    "vocabulary": ("usual", "odd", "prime"),
    "files": ("one", "several"),
    "generation": ("none", "sampling"),
    "dropout": ("none", "half"),
    "activation": ("silu", "gelu"),
}
"""The axes of a decoder built like Llama. The first value of each is what tiny models of the suite have anyway."""

EPS = {"usual": 1e-6, "small": 1e-5, "coarse": 3e-2}
THETA = {"usual": 10000.0, "small": 500.0, "large": 1e6}
VOCABULARY = {"usual": 64, "odd": 75, "prime": 131}
HEADS = {"grouped": (4, 2), "one": (4, 1), "each": (4, 4), "odd": (6, 2)}
HEAD_DIM = {"divided": 8, "wide": 16}
DROPOUT = {"none": 0.0, "half": 0.5}
_SCALED: Mapping[str, Mapping[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": TRAINED_CONTEXT, "beta_fast": 8.0, "beta_slow": 1.0},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED_CONTEXT,
    },
}


def sizes(drawn: Drawn) -> dict[str, Any]:
    """Return what config.json says of sizes, for families that name them as Llama does. Any: json."""
    heads, kv_heads = HEADS[drawn["heads"] or "grouped"]
    divided = drawn.head_dim or HEAD_DIM["divided"]
    config = {
        "vocab_size": VOCABULARY[drawn["vocabulary"] or "usual"],
        "hidden_size": heads * divided,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": drawn["tied"] == "tied",
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    if drawn["head_dim"] == "wide":
        config["head_dim"] = drawn.head_dim or HEAD_DIM["wide"]
        config["hidden_size"] = heads * divided // (2 if drawn.head_dim else 1)
    return config


def positions(drawn: Drawn) -> dict[str, Any]:
    """Return what config.json says of rotary positions, where old folders say it or where new ones do. Any: json."""
    kind, theta = drawn["rope"] or "default", THETA[drawn["theta"] or "usual"]
    scaled = dict(_SCALED.get(kind, {}))
    if kind == "longrope":
        pairs = (drawn.head_dim or HEAD_DIM[drawn["head_dim"] or "divided"]) // 2
        factors = {"short_factor": [1.0 + pair / 4 for pair in range(pairs)], "long_factor": [4.0] * pairs}
        scaled = {"factor": 4.0, "original_max_position_embeddings": TRAINED_CONTEXT, **factors}
    if drawn["place"] in ("", "new"):
        return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **scaled}}
    word = "type" if drawn["place"] == "old_type" else "rope_type"
    return {"rope_theta": theta, "rope_scaling": {word: kind, **scaled} if scaled else None}
