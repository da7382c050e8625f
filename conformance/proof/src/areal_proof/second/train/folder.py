"""Hugging Face model folders, read and written without transformers.

Knows: safetensors, and what of a folder is copied as it is.
Does not know: which tensors a model has (`architecture`), what is computed with them, devices, ranks. Nothing is
unpickled, no code of a folder is run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from areal_core.contract.errors import ModelError
from areal_core.contract.train import Head
from areal_proof.second.architecture import LM_HEAD, SCORE, read_config

_NOT_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


def read_tensors(path: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read float32 weights on the CPU; a value head that is not there is zero.

    Raises:
        ModelError: a tensor is missing, unknown, torn or of another shape.
    """
    found: dict[str, Tensor] = {}
    try:
        for file in sorted(Path(path).glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"weights in {path!r} cannot be read", why=str(error), fix="copy the folder again") from error
    for name, shape in shapes.items():
        if name.startswith(SCORE):
            found.setdefault(name, torch.zeros(shape))
    ignored = {name for name in found if name.startswith((LM_HEAD, SCORE)) or name.endswith("rotary_emb.inv_freq")}
    odd = sorted((set(shapes) ^ set(found)) - (ignored - set(shapes)))
    odd += [name for name, shape in shapes.items() if name in found and tuple(found[name].shape) != shape]
    if odd:
        raise ModelError(
            f"weights in {path!r} do not match its config.json",
            why=f"missing, unknown or of another shape: {', '.join(odd[:4])}",
            fix="use config.json and *.safetensors from the same model",
        )
    return {name: found[name].float().clone() for name in shapes}


def write_model(folder: Path, source: str, tensors: Mapping[str, Tensor], head: Head, dtype: str) -> None:
    """Write weights, the changed config.json and every other file of `source` into the empty `folder`."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    for file in Path(source).iterdir():
        if file.is_file() and file.name != "config.json" and not file.name.endswith(_NOT_WEIGHTS):
            shutil.copyfile(file, folder / file.name)
    config = read_config(source)
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    if head is Head.VALUE:
        stem = str(config["architectures"][0]).removesuffix("ForCausalLM").removesuffix("ForTokenClassification")
        config |= {"architectures": [f"{stem}ForTokenClassification"], "id2label": {"0": "LABEL_0"}}
        config["label2id"] = {"LABEL_0": 0}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
