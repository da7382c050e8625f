"""A tiny model whose attention is decided: what a token attends to shows in the log-prob of the next.

Knows: which tensors of a model folder set the scale of attention.
Does not know: engines.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

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
