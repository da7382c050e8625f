"""Hugging Face model folders: checked, loaded, and described.

Knows: config.json, safetensors weights, heads, tied tensors, the names tensors have in a folder.
Does not know: devices or ranks. No code from a model folder is ever run, no pickle read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_core.config.model_folder import inspect_model, read_json
from areal_core.contract.errors import ModelError
from areal_core.contract.train import Head
from areal_torch import attention
from areal_torch.folder_checks import check_number, check_sizes, refusing
from areal_torch.weight_files import refuse_other_names

Model = Any  # Any: transformers is not typed here

_VALUE_ENDING = "ForTokenClassification"
_RANDOM = ("dropout", "pdrop", "layerdrop", "dropout_prob", "dropout_rate", "jitter_noise")
"""How keys of config.json end that make a model in training draw."""
_TRIED = 4
"""Tokens of the trial."""
_FOUND_FIT: set[tuple[type, str]] = set()
"""Classes and config.json of models whose attention was tried in this process: engines are started again in one."""
_HARMLESS = ("rotary_emb.inv_freq", ".masked_bias", ".attn.bias")


def load_config(path: str, head: Head, *, images: bool = False) -> Any:  # Any: a transformers configuration
    """Read config.json and refuse what these engines cannot train; with `images` it may be of a model that sees.

    Raises:
        ModelError: no folder, no causal language model, own code, attention other than full and causal, or angles that
            depend on what else is in a pass.
    """
    from transformers import AutoConfig

    if not (head is Head.VALUE and _architecture(path).endswith(_VALUE_ENDING)):
        inspect_model(path, images=images and head is Head.CAUSAL_LM)
    check_sizes(path)
    known = "use a model that this version of transformers knows; code in model folders is never run"
    with refusing(f"model folder {path!r} cannot be read", known):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        _check_attention(path, config)
        _check_positions(path, config)
        for part in (config, *(getattr(config, name) for name in config.sub_configs if hasattr(config, name))):
            for key, value in list(part.to_dict().items()):
                if isinstance(value, float) and key.endswith(_RANDOM):
                    setattr(part, key, 0.0)  # log-probs must be the same in training and in scoring
    if head is Head.VALUE:
        config.num_labels = 1
        config.classifier_dropout = 0.0
    return config


def empty_model(config: Any, head: Head) -> Model:
    """Build the model on the meta device: shapes and names, no memory.

    Raises:
        ModelError: transformers has no such model, or none that takes our attention.
    """
    what = f"no model of type {config.model_type!r} with the {head.value!r} head can be built"
    with (
        refusing(what, "choose a model that has one: llama, qwen2, qwen3 and their MoE relatives do"),
        torch.device("meta"),
    ):
        return _class_of(head, config).from_config(
            config, dtype=torch.float32, attn_implementation=_attention_of(config), trust_remote_code=False
        )


def load_model(path: str, config: Any, head: Head) -> Model:
    """Load float32 weights on the CPU. A value head not in the folder starts at zero.

    Raises:
        ModelError: weights missing, torn, or of another model.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what its load report says, the checks below raise
    empty = empty_model(config, head)
    check_number(path, empty)
    _try_attention(path, empty)
    with refusing(f"weights in {path!r} cannot be loaded"):
        model, info = _class_of(head, config).from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            attn_implementation=_attention_of(config),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if model._is_stateful or not model._supports_attention_backend:
        raise ModelError(
            f"model {path!r} ({type(model).__name__}) cannot keep packed sequences apart",
            why="its layers carry state, or bypass transformers' attention interface",
            fix="choose a model that does: llama, qwen2, qwen3 and their MoE relatives do",
        )
    missing = set(info["missing_keys"])
    if head is Head.VALUE and "score.weight" in missing:
        with torch.no_grad():
            for parameter in model.score.parameters():
                parameter.zero_()
        missing -= {name for name in missing if name.startswith("score.")}
    unexpected = {name for name in info["unexpected_keys"] if not name.endswith(_HARMLESS)}
    unexpected -= {"lm_head.weight", "lm_head.bias"} if head is Head.VALUE else {"score.weight", "score.bias"}
    refuse_other_names(path, missing, unexpected)
    return model


def recompute_activations(model: Model) -> None:
    """Keep only each layer's input in the forward pass. Transformers renamed the switch within version 5.

    Layers look whether they are in training before they do it; what they hold stays as it was, and draws nothing.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


def tied_weights(model: Model) -> dict[str, str]:
    """Return, for each name that shares another's tensor, the name that carries it."""
    carriers: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        carrier = carriers.setdefault(id(parameter), name)
        if carrier != name:
            tied[name] = carrier
    return tied


def folder_tensors(model: Model, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return one parameter under the names and shapes it has in a model folder.

    Almost always itself; transformers fuses the experts of a MoE layer into one parameter,
    which is several tensors in the folder. Views, not copies.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, {name: tensor}))


def context_length(config: Any) -> int:
    """Return the longest sequence the model was made for, 0 if it does not say."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", 0) or getattr(text, "n_positions", 0) or 0)


def folder_config(path: str, architecture: str, dtype: str) -> dict[str, Any]:
    """Return the config.json of a folder written from a trained model: the original but for class and dtype."""
    config: dict[str, Any] = json.loads((Path(path) / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    config["architectures"] = [architecture]
    if config["architectures"][0].endswith(_VALUE_ENDING):
        config["id2label"] = {"0": "LABEL_0"}
        config["label2id"] = {"LABEL_0": 0}
    return config


def _class_of(head: Head, config: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForTokenClassification

    if head is Head.VALUE:
        return AutoModelForTokenClassification
    return AutoModelForImageTextToText if _sees(config) else AutoModelForCausalLM


def _attention_of(config: Any) -> Any:
    """Return what transformers is to compute attention with: a vision tower's is not causal, and its own."""
    ours = attention.register()
    return {"text_config": ours, "vision_config": "sdpa"} if _sees(config) else ours


def _sees(config: Any) -> bool:
    return getattr(config, "vision_config", None) is not None


def _architecture(path: str) -> str:
    try:
        names = read_json(Path(path) / "config.json").get("architectures")
    except ModelError:
        return ""  # inspect_model says what is wrong
    return str(names[0]) if isinstance(names, list) and names else ""


def _check_attention(path: str, config: Any) -> None:
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    window = None if kinds else getattr(text, "sliding_window", None)
    softcap = getattr(text, "attn_logit_softcapping", None) or getattr(text, "final_logit_softcapping", None)
    odd = kinds - {"full_attention"}
    if odd or window or softcap or getattr(text, "is_encoder_decoder", False):
        found = ", ".join(sorted(odd)) or (f"a sliding window of {window}" if window else "soft-capped logits")
        raise ModelError(
            f"model {path!r} has {found}",
            why="these engines train models with full causal attention in every layer and plain logits",
            fix="choose another model: llama, qwen2, qwen3 and their MoE relatives work",
        )


def _check_positions(path: str, config: Any) -> None:
    said = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (said, *said.values()) if isinstance(part, dict)}
    if "longrope" in kinds:
        raise ModelError(
            f"model {path!r} has rotary positions of type 'longrope'",
            why="its angles change with the longest sequence of a pass, so sequences packed together change each other",
            fix="choose another model, or another scaling in its config.json: linear, yarn, llama3 and dynamic work",
        )


def _try_attention(path: str, empty: Model) -> None:
    """Run a model that computes nothing: its attention refuses here what it would refuse in the first step.

    Raises:
        ModelError: a layer attends otherwise than fully and causally, or keeps packed sequences together.
    """
    known = type(empty), (Path(path) / "config.json").read_text()
    if _sees(empty.config) or known in _FOUND_FIT:
        return
    packing = attention.Packing(
        cu_seqlens=torch.tensor([0, _TRIED]),
        positions=torch.arange(_TRIED),
        predicted=torch.arange(1, _TRIED),
        runs=((1, _TRIED),),
        max_length=_TRIED,
    )
    ids = torch.zeros(1, _TRIED, dtype=torch.long, device="meta")
    try:
        with torch.no_grad():
            empty.base_model(input_ids=ids, position_ids=ids, attention_mask=None, use_cache=False, packing=packing)
    except ModelError as error:
        raise ModelError(f"model {path!r} cannot be trained: {error.what}", why=error.why, fix=error.fix) from error
    except Exception:  # what depends on values has none here, such as the routing of experts: it tells nothing
        pass
    _FOUND_FIT.add(known)


def identity(model: Model, head: Head, *, trained: bool) -> dict[str, Any]:
    """Return what a saved state must have in common with the model it is loaded into; json."""
    shapes = [[name, list(parameter.shape)] for name, parameter in model.named_parameters()]
    digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
    return {"architecture": type(model).__name__, "head": str(head), "shapes": digest, "trained": trained}
