"""Tiny models for benches, each made once per process and copied for whoever wants one; sharpened for pairs.

Knows: where the originals are, until the process ends, and which tensors set the scale of attention.
Does not know: what else is in them (`areal_torch.testing.models`).
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from areal_torch.testing.models import make_tiny_model


def tiny_model(folder: Path, **arguments: Any) -> Path:
    """Write a tiny model to `folder`, the caller's own; return it. Any: the arguments of `make_tiny_model`."""
    one_thread()
    shutil.copytree(_original(tuple(sorted(arguments.items()))), folder)
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
    return make_tiny_model(_store() / f"model-{_original.cache_info().currsize:03d}", **dict(arguments))


@functools.cache
def _store() -> Path:
    path = Path(tempfile.mkdtemp(prefix="areal-conformance-models-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


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
