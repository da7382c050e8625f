"""Adapters as SGLang takes them: it fuses layers, and ends with an error if an adapter has some of a fused group only.

Knows: which layers are fused; a missing one is one whose update is zero.
Does not know: whether an adapter fits the model (`areal_serving.adapter_folder`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_CONFIG = "adapter_config.json"


@contextmanager
def completed(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Path]:
    """Give a folder in which every fused group is whole or not there: `folder`, or one for as long as this lasts.

    Args:
        shapes: the model's, by Hugging Face name.
    """
    tensors = {
        name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }
    more = _missing(tensors, shapes)
    if not more:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="areal-adapter-") as scratch:
        config = json.loads((folder / _CONFIG).read_text())
        if isinstance(config.get("target_modules"), list):
            named = {
                name.removeprefix(_PREFIX).removesuffix(_A).rpartition(".")[2] for name in more if name.endswith(_A)
            }
            config["target_modules"] = sorted({*config["target_modules"], *named})
        (Path(scratch) / _CONFIG).write_text(json.dumps(config))
        save_file({**tensors, **more}, Path(scratch) / "adapter_model.safetensors")
        for file in folder.glob("*token*"):
            shutil.copyfile(file, Path(scratch) / file.name)
        yield Path(scratch)


def _missing(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, first in tensors.items():
        layer = name.removesuffix(_A)
        parent, _, leaf = layer.rpartition(".")
        group = next((group for group in FUSED if leaf in group), ())
        if layer == name:
            continue
        for other in group:
            sibling = f"{parent}.{other}"
            weight = shapes.get(f"{sibling.removeprefix(_PREFIX)}.weight")
            if weight is not None and sibling + _A not in tensors:
                found[sibling + _A] = torch.zeros_like(first)
                found[sibling + _B] = torch.zeros(weight[0], first.shape[0], dtype=first.dtype)
    return found
