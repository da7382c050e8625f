"""The families of the zoo: on which axes each may vary, and what its config.json says then.

Knows: config.json of each family, as folders on the hub have it.
Does not know: weights, files beside it, or which family a backend claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from areal_conformance.zoo.traits import COMMON, DROPOUT, EPS, Drawn, positions, sizes

Json = dict[str, Any]
"""What config.json says. Any: json."""


@frozen
class Architecture:
    """A family: its class, axes beside or in place of `COMMON`, and what it says besides.

    `without` are common axes it does not have.
    """

    model: str
    axes: Mapping[str, tuple[str, ...]]
    config: Callable[[Drawn], Json]


def axes_of(without: tuple[str, ...] = (), **own: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the axes of a family."""
    return {axis: values for axis, values in {**COMMON, **own}.items() if axis not in without}


def decoder(drawn: Drawn) -> Json:
    """Return what families built like Llama say."""
    return {
        **sizes(drawn),
        **positions(drawn),
        "rms_norm_eps": EPS[drawn["eps"] or "usual"],
        "attention_dropout": DROPOUT[drawn["dropout"] or "none"],
        "hidden_act": {"gelu": "gelu_pytorch_tanh"}.get(drawn["activation"], "silu"),
    }


def _llama(drawn: Drawn) -> Json:
    bias = drawn["bias"]
    return {**decoder(drawn), "attention_bias": bias in ("attention", "both"), "mlp_bias": bias in ("mlp", "both")}


def _window(drawn: Drawn) -> Json:
    slides = drawn["window"] == "slides"
    written = {"sliding_window": 8, "max_window_layers": 0} if drawn["window"] else {}
    return {**written, "use_sliding_window": slides}


def _qwen2(drawn: Drawn) -> Json:
    return {**decoder(drawn), **_window(drawn)}


def _qwen3(drawn: Drawn) -> Json:
    return {
        **decoder(drawn),
        **_window(drawn),
        "attention_bias": drawn["bias"] == "attention",
        "head_dim": _head(drawn),
    }


def _head(drawn: Drawn) -> int:
    """Return the size of a head: these families have another default than hidden over heads."""
    config = sizes(drawn)
    return int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))


def _experts(drawn: Drawn) -> Json:
    count, chosen = {"two_of_four": (4, 2), "one_of_four": (4, 1), "three_of_six": (6, 3)}[drawn["experts"]]
    where: Mapping[str, Json] = {
        "all": {"decoder_sparse_step": 1, "mlp_only_layers": []},
        "step": {"decoder_sparse_step": 2, "mlp_only_layers": []},
        "listed": {"decoder_sparse_step": 1, "mlp_only_layers": [1]},
    }
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": 24,
        "norm_topk_prob": drawn["gates"] == "normalised" and chosen > 1,  # else the gate of one would always be 1
        **where[drawn["mixtures"]],
    }


def _qwen3_moe(drawn: Drawn) -> Json:
    return {**_qwen3(drawn), **_experts(drawn)}


def _qwen2_moe(drawn: Drawn) -> Json:
    return {**_qwen2(drawn), **_experts(drawn), "shared_expert_intermediate_size": 40, "qkv_bias": True}


def _mistral(drawn: Drawn) -> Json:
    window = {"slides": 8, "none": None}[drawn["window"]]
    return {**decoder(drawn), "sliding_window": window}


def _mixtral(drawn: Drawn) -> Json:
    noise = {"router_jitter_noise": 0.4} if drawn["dropout"] == "half" else {}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return {**decoder(drawn), **experts, **noise, "sliding_window": None, "head_dim": _head(drawn)}


def _granite(drawn: Drawn) -> Json:
    scale = {"none": 1.0, "eighth": 8.0}[drawn["scale"]]
    rest = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25}
    return {**decoder(drawn), "logits_scaling": scale, **(rest if drawn["scale"] != "none" else {})}


def _cohere(drawn: Drawn) -> Json:
    config = decoder(drawn)
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    scale = {"none": 1.0, "eighth": 0.125}[drawn["scale"]]
    return {**config, "logit_scale": scale, "use_qk_norm": drawn["qk_norm"] == "normed"}


def _glm4(drawn: Drawn) -> Json:
    part = {"half": 0.5, "most": 0.75}[drawn["rotary"]]
    config = {**decoder(drawn), "head_dim": _head(drawn), "attention_bias": drawn["bias"] == "attention"}
    if "rope_parameters" in config:
        config["rope_parameters"]["partial_rotary_factor"] = part
        return config
    return {**config, "partial_rotary_factor": part}


def _phi(drawn: Drawn) -> Json:
    config, rate = decoder(drawn), DROPOUT[drawn["dropout"]]
    config["layer_norm_eps"] = config.pop("rms_norm_eps")
    config |= {"hidden_act": "gelu_new", "attention_dropout": rate, "embd_pdrop": rate, "resid_pdrop": rate}
    config["qk_layernorm"] = drawn["qk_norm"] == "normed"
    part = {"half": 0.5, "whole": 1.0}[drawn["rotary"]]
    if "rope_parameters" in config:
        config["rope_parameters"]["partial_rotary_factor"] = part
        return config
    return {**config, "partial_rotary_factor": part}


def _gpt2(drawn: Drawn) -> Json:
    size, rate = sizes(drawn), DROPOUT[drawn["dropout"]]
    return {
        "vocab_size": size["vocab_size"],
        "n_embd": size["hidden_size"],
        "n_layer": 2,
        "n_head": size["num_attention_heads"],
        "n_positions": size["max_position_embeddings"],
        "layer_norm_epsilon": EPS[drawn["eps"]],
        "attn_pdrop": rate,
        "embd_pdrop": rate,
        "resid_pdrop": rate,
        **{name: size[name] for name in ("tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")},
    }


def _opt(drawn: Drawn) -> Json:
    size, rate = sizes(drawn), DROPOUT[drawn["dropout"]]
    kept = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    ends = ("tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")
    return {
        **{name: size[name] for name in kept + ends},
        "word_embed_proj_dim": size["hidden_size"],
        "ffn_dim": 48,
        "dropout": rate,
        "attention_dropout": rate,
        "layerdrop": rate,
    }


def _gemma2(drawn: Drawn) -> Json:
    of_scores, of_logits = drawn["caps"] in ("soft", "scores"), drawn["caps"] in ("soft", "logits")
    caps = {"attn_logit_softcapping": 0.5 if of_scores else None, "final_logit_softcapping": 3.0 if of_logits else None}
    kind = "sliding_attention" if drawn["window"] == "slides" else "full_attention"
    config = {**decoder(drawn), **caps, "sliding_window": 8, "layer_types": [kind, "full_attention"]}
    config["hidden_activation"] = "gelu_pytorch_tanh"
    return {**config, "head_dim": _head(drawn), "query_pre_attn_scalar": 16}


def _gpt_oss(drawn: Drawn) -> Json:
    """Of which only the sinks are left that attention has in every layer: a learned logit of nothing for each head."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    kinds = {"layer_types": ["full_attention", "full_attention"], "sliding_window": 8}
    return {**decoder(drawn), **experts, **kinds, "head_dim": _head(drawn), "attention_bias": True}


_SOME: dict[str, tuple[str, ...]] = {"activation": ("silu",)}
_NO_ROPE = ("place", "rope", "theta", "head_dim", "activation")
_MIXTURES: dict[str, tuple[str, ...]] = {
    "experts": ("two_of_four", "one_of_four", "three_of_six"),
    "gates": ("normalised", "as_they_are"),
    "mixtures": ("all", "step", "listed"),
}
_WRITTEN = ("none", "written", "slides")

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM",
        axes_of(bias=("none", "attention", "mlp", "both"), rope=(*COMMON["rope"], "longrope")),
        _llama,
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", axes_of(without=("head_dim",), window=_WRITTEN), _qwen2),
    "qwen3": Architecture("Qwen3ForCausalLM", axes_of(window=_WRITTEN, bias=("none", "attention")), _qwen3),
    "qwen3_moe": Architecture(
        "Qwen3MoeForCausalLM", axes_of(**_MIXTURES, bias=("none", "attention"), window=("none",)), _qwen3_moe
    ),
    "qwen2_moe": Architecture("Qwen2MoeForCausalLM", axes_of(("head_dim",), **_MIXTURES, window=("none",)), _qwen2_moe),
    "mistral": Architecture("MistralForCausalLM", axes_of(window=("none", "slides")), _mistral),
    "mixtral": Architecture("MixtralForCausalLM", axes_of(**_SOME), _mixtral),
    "granite": Architecture("GraniteForCausalLM", axes_of(("head_dim",), scale=("eighth", "none")), _granite),
    "cohere": Architecture(
        "CohereForCausalLM",
        axes_of(("head_dim",), scale=("eighth", "none"), qk_norm=("none", "normed"), **_SOME),
        _cohere,
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM", axes_of(rotary=("half", "most"), bias=("none", "attention"), **_SOME), _glm4
    ),
    "phi": Architecture(
        "PhiForCausalLM",
        axes_of(("head_dim", "activation"), rotary=("half", "whole"), qk_norm=("none", "normed")),
        _phi,
    ),
    "gpt2": Architecture("GPT2LMHeadModel", axes_of(_NO_ROPE, heads=("each",)), _gpt2),
    "opt": Architecture("OPTForCausalLM", axes_of((*_NO_ROPE, "eps"), heads=("each",)), _opt),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        axes_of(caps=("soft", "none", "scores", "logits"), window=("none", "slides"), **_SOME),
        _gemma2,
    ),
    "gpt_oss": Architecture("GptOssForCausalLM", axes_of(**_SOME), _gpt_oss),
}
"""`model_type` of config.json -> the family."""
BIASED_HEADS = ("phi",)
"""Families that add a bias to their logits."""


def config_of(drawn: Drawn) -> Json:
    """Return the config.json of a drawn model."""
    family = ARCHITECTURES[drawn.architecture]
    return {"architectures": [family.model], "model_type": drawn.architecture, **family.config(drawn)}
