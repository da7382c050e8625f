"""adapter_config.json as PEFT writes it: which low-rank adapters this project trains and serves.

Knows: its entries, and which of them make another model than W + scale B A.
Does not know: tensors.
"""

from __future__ import annotations

import math
from typing import Any

from areal_core.config.model_folder import local_folder, read_json
from areal_core.contract.errors import ModelError
from areal_core.contract.train import LoraSpec

CONFIG = "adapter_config.json"
_OTHER = (
    *("bias", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform"),
    *("fan_in_fan_out", "trainable_token_indices", "target_parameters"),
    *("lora_bias", "layer_replication", "alora_invocation_tokens"),
    *("use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config"),
)
"""Entries of adapter_config.json that, unless empty, make another model than W + scale B A."""
_BEGINNING = "init_lora_weights"
_SAME_BASE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""How A and B may have begun; any other way takes what they began as from W (pissa, olora, corda, loftq, lora_ga)."""


def read_lora(key: str, path: str, by_engine: bool = False) -> LoraSpec:
    """Return rank, alpha and targets of a folder in PEFT's format, here or on the hub: the extension `adapter_config`.

    Errors name the `key`. Folders that engines read themselves, `by_engine`, may not have the scale of rank-stabilised
    adapters, which not all of them know.

    Raises:
        ModelError: no adapter folder, or an adapter of another kind.
    """
    others = (*_OTHER, "use_rslora") if by_engine else _OTHER
    folder = local_folder(path)
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{key} {path!r} is no adapter folder",
            why=f"it has no {CONFIG}",
            fix="name a folder that peft's save_pretrained wrote, or `adapter` in a model folder of a run",
        )
    found = read_json(folder / CONFIG)
    rank: Any = found.get("r")  # Any: json
    alpha: Any = found.get("lora_alpha")
    targets: Any = found.get("target_modules")
    plain = type(rank) is int and rank > 0 and _is_number(alpha) and isinstance(targets, list)
    odd = [entry for entry in others if found.get(entry) not in (None, False, "none") and found[entry]]
    odd += [] if found.get(_BEGINNING) in _SAME_BASE else [_BEGINNING]
    if not plain or odd or found.get("peft_type") != "LORA":
        raise ModelError(
            f"the adapter in {key} {path!r} is of another kind",
            why=f"{', '.join(odd) or 'peft_type, r, lora_alpha or target_modules'} in {CONFIG}: only W + "
            "(alpha / rank) B A on layers named one by one is trained and served",
            fix="merge it into the model with peft, and begin a new one",
        )
    scale = rank**0.5 if found.get("use_rslora") else 1.0
    return LoraSpec(rank=rank, alpha=alpha * scale, targets=sorted(targets), path=str(folder.absolute()))


def _is_number(alpha: Any) -> bool:
    return isinstance(alpha, int | float) and not isinstance(alpha, bool) and math.isfinite(alpha)
