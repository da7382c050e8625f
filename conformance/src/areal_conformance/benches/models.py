"""Tiny models for benches, each made once per process and copied for whoever wants one; sharpened, made endless.

Knows: where the originals are, until the process ends, and which tensors set the scale of attention and the end.
Does not know: what else is in them (`areal_torch.testing.models`).
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from areal_conformance.outcome import HarnessError
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.sparse_files import hole, write_behind


def tiny_model(folder: Path, **arguments: Any) -> Path:
    """Write a tiny model to `folder`, the caller's own; return it. Any: the arguments of `make_tiny_model`."""
    one_thread()
    shutil.copytree(_original(tuple(sorted(arguments.items()))), folder)
    return folder


def several_files(model: Path, folder: Path, count: int) -> Path:
    """Copy a model folder, its tensors dealt out over `count` files and an index; return the copy."""
    shutil.copytree(model, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    file.unlink()
    names = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    placed = {tensor: names[place % count] for place, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({each: tensors[each] for each in placed if placed[each] == name}, folder / name, {"format": "pt"})
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def behind_a_hole(model: Path, folder: Path, name: str) -> Path:
    """Copy a model folder, with over four gibibytes of a tensor of that name before the others; return the copy.

    Nothing is written of it. A tensor that the model has by that name is left out.
    """
    shutil.copytree(model, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(model / file.name)
    tensors.pop(name, None)
    write_behind(file, hole(name, 1), tensors)
    return folder


def one_thread() -> None:
    """Use one core for tiny models: more would only make them slower."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def quiet() -> None:
    """Keep transformers from drawing progress bars."""
    logging.disable_progress_bar()


@functools.cache
def _original(arguments: tuple[tuple[str, Any], ...]) -> Path:
    quiet()
    return make_tiny_model(store() / f"model-{_original.cache_info().currsize:03d}", **dict(arguments))


@functools.cache
def store() -> Path:
    """Return where what is made once per process lies until it ends."""
    path = Path(tempfile.mkdtemp(prefix="areal-conformance-models-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


TEXT_IDS = 64
"""Ids of a tiny model that stand for text; what comes after them stands for images."""
MERGER = "visual.merger.mlp.2.weight"
"""What writes the features of an image."""
SHARPNESS = 3.0
_SCALES = ("q_norm.weight", "q_proj.weight", "q_proj.bias")


def sharpen(folder: Path) -> Path:
    """Multiply every query of a model folder; return the folder.

    Scores of a random model are nearly flat: an engine that gets them a little wrong at some length would hardly
    be seen. Where queries are normed, the norm alone sets their size.
    """
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(_SCALES):
            tensors[name] = tensor * SHARPNESS
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def make_endless(path: Path) -> None:
    """Change a tiny model so that id 1, and ids of no text, are never generated: one hidden number is always the same.

    No layer writes to that number, nor what sees images, and only these tokens' rows of the head read it, with a
    large negative weight.
    """
    file = path / "model.safetensors"
    if not file.is_file():
        raise HarnessError(f"{file} is not there: tiny models are expected in one file")
    tensors = load_file(file)
    last = tensors["model.embed_tokens.weight"].shape[1] - 1
    for name, tensor in tensors.items():
        if name.startswith("visual."):
            continue
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[last] = 0.0
        elif name.endswith("lm_head.weight"):
            tensor[:, last] = 0.0
    tensors["model.embed_tokens.weight"][:, last] = 1.0
    tensors["model.norm.weight"][last] = 1.0
    if MERGER in tensors:
        tensors[MERGER][last] = 0.0
        tensors[MERGER.replace("weight", "bias")][last] = 1.0
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    for token in (1, *range(TEXT_IDS, len(head))):
        head[token, last] = -100.0
    save_file(tensors, file, metadata={"format": "pt"})
