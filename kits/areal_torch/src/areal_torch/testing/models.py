"""Tiny causal language models on disk, for every test that needs a real one.

Knows: how to write a small random Hugging Face model folder, the same bytes for the same seed.
Does not know: who loads it.
"""

from __future__ import annotations

import json
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from areal_torch.tokenizers import SPECIAL_TOKENS, SPELL_CHARACTERS, character_tokenizer

WITH_IMAGES = "qwen2_5_vl"
"""The kind that takes images, if nothing else matters."""
SEEING = (WITH_IMAGES, "qwen2_vl", "qwen3_vl")
"""All kinds that take images."""
IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""What a model with images has behind its `vocab_size` ids; the third is the placeholder of an image."""
IMAGE_SIDE = 28
"""Pixels one token of an image covers in each direction. An image with such sides is not resized."""
SIDE_IN_PATCHES = 2
"""Patches one token of an image covers in each direction."""
_PATCH = 14
PATCH_VALUES = 3 * 2 * _PATCH**2
"""Numbers in a patch: colours, the picture twice (as two frames), height and width."""
_REST_OF_ASCII = "0123456789 \n" + "".join(chr(code) for code in range(33, 127))


def make_tiny_model(
    path: Path,
    *,
    kind: str = "qwen3",
    seed: int = 0,
    vocab_size: int = 64,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 0,
    tied: bool = True,
    max_position: int = 256,
) -> Path:
    """Write a float32 causal language model and a character tokenizer to `path`; return `path`.

    `head_dim` 0 is `hidden` over `heads`; of the kind with images it is always, and `hidden` follows a given one.
    `kind` is "qwen3", "qwen2" (biases on q, k, v), "llama" or "qwen3_moe" (four experts, two a token).
    "qwen2_5_vl" is a qwen2 with rotary positions in three directions and a small vision tower, up to 64 tokens an
    image; four ids more than `vocab_size` are its `IMAGE_TOKENS`. "qwen2_vl" and "qwen3_vl" are its relatives.
    Pad is id 0, end is id 1, ids 2 and up are `<unk>`, the letters, ">", "-", digits, space, newline,
    punctuation, capitals. Weights are wide enough that the next token matters (about two thirds of the
    flat entropy), and norms and biases differ from their neutral values, so that a layer left out or
    not sent shows.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if kind in SEEING and head_dim:
        hidden = heads * head_dim
    head_dim = head_dim or hidden // heads
    builder = AutoModelForImageTextToText if kind in SEEING else AutoModelForCausalLM
    config = _config(kind, vocab_size, hidden, layers, heads, kv_heads, head_dim, tied, max_position)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = builder.from_config(config, dtype=torch.float32)
    fill(model, hidden, seed)
    model.save_pretrained(path)
    characters = _characters(vocab_size)
    if kind == "qwen2":  # AutoTokenizer reads any tokenizer beside a qwen2 model as a byte-level one
        characters = characters.replace(" ", "\u0120").replace("\n", "\u010a")
    tokenizer = character_tokenizer(characters)
    if kind in SEEING:
        tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
        (path / "preprocessor_config.json").write_text(json.dumps(_IMAGE_PROCESSOR, indent=2))
    tokenizer.save_pretrained(path)
    return path


_IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": _PATCH,
    "temporal_patch_size": 2,
    "merge_size": SIDE_IN_PATCHES,
    "size": {"shortest_edge": IMAGE_SIDE**2, "longest_edge": 64 * IMAGE_SIDE**2},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def fill(model: torch.nn.Module, hidden: int, seed: int, *, spread: float = 0.1) -> None:
    """Give every parameter numbers that matter: matrices wide enough, norms and biases unlike their neutral values.

    Args:
        spread: How far norms and biases are from those, one standard deviation.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * 1.5 * hidden**-0.5)
            else:
                parameter.copy_(noise * spread + (0.0 if name.endswith("bias") else 1.0))


def _config(
    kind: str,
    vocab_size: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    tied: bool,
    max_position: int,
) -> Any:  # Any: transformers is not typed here
    from transformers import (
        LlamaConfig,
        Qwen2_5_VLConfig,
        Qwen2Config,
        Qwen2VLConfig,
        Qwen3Config,
        Qwen3MoeConfig,
        Qwen3VLConfig,
    )

    kinds = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig, "qwen3_moe": Qwen3MoeConfig}
    options: dict[str, Any] = {} if kind == "qwen2" else {"head_dim": head_dim}
    if kind == "qwen3_moe":
        options |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": hidden, "norm_topk_prob": True}
    ends = {"tie_word_embeddings": tied, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    text: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": max_position,
        **ends,
    }
    if kind in SEEING:
        config = {WITH_IMAGES: Qwen2_5_VLConfig, "qwen2_vl": Qwen2VLConfig, "qwen3_vl": Qwen3VLConfig}[kind]
        return config(**_with_images(kind, text, head_dim), **ends)
    return kinds[kind](**text, **options)


def _with_images(kind: str, text: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Return the arguments of a configuration with images: time, height and width share the pairs of a head."""
    pairs, first = head_dim // 2, text["vocab_size"]
    sections = [pairs - 2 * (pairs * 3 // 8), pairs * 3 // 8, pairs * 3 // 8]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    more = {"head_dim": head_dim} if kind == "qwen3_vl" else {}
    return {
        "text_config": {**text, **more, "vocab_size": first + len(IMAGE_TOKENS), "rope_parameters": rope},
        "vision_config": _vision(kind, text["hidden_size"]),
        "vision_start_token_id": first,
        "vision_end_token_id": first + 1,
        "image_token_id": first + 2,
        "video_token_id": first + 3,
    }


def _vision(kind: str, hidden: int) -> dict[str, Any]:
    tower = {
        "depth": 2,
        "num_heads": 2,
        "patch_size": _PATCH,
        "spatial_merge_size": SIDE_IN_PATCHES,
        "temporal_patch_size": 2,
    }
    if kind == "qwen2_vl":
        return {**tower, "embed_dim": 32, "hidden_size": hidden, "mlp_ratio": 2}
    tower |= {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": hidden}
    if kind == "qwen3_vl":
        return {**tower, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
    return {**tower, "in_chans": 3, "fullatt_block_indexes": [0, 1]}  # in_chans as in released folders; SGLang reads it


def _characters(vocab_size: int) -> str:
    num_characters = vocab_size - len(SPECIAL_TOKENS)
    known = "".join(dict.fromkeys(SPELL_CHARACTERS + _REST_OF_ASCII))
    more = chain(range(0x4E00, 0xD800), range(0xE000, 0x110000))  # between them are halves of characters
    return (known + "".join(map(chr, islice(more, max(0, num_characters - len(known))))))[:num_characters]
