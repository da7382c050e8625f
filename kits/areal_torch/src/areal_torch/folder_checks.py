"""What of a model folder transformers is not asked to read, because it would fail in its own words, or never end.

Knows: sizes that no tensor of the folder has, an index that leads out of it, and how such errors are told.
Does not know: how a model is built or loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from areal_core.config.model_folder import LAYERS, read_headers, read_json
from areal_core.contract.errors import ArealError, ModelError

SAME_MODEL = "use config.json and *.safetensors from the same model"
INDEX = "model.safetensors.index.json"
_SIZES = (
    *("vocab_size", "hidden_size", "n_embd", "intermediate_size", "moe_intermediate_size", "head_dim"),
    *("num_attention_heads", "n_head", "num_key_value_heads", "num_experts"),
)
"""Each is a length of some tensor, or a part of one; in a model of experts alone `intermediate_size` is of none."""
_HARMLESS = 1 << 16
"""A length that may be told without a tensor that has it."""
_PACKED = 16
"""More numbers than so many times those stored are in no folder, however its weights are packed."""
_SMALL = 1 << 24
"""So many numbers more fit any machine."""


@contextmanager
def refusing(what: str, fix: str = "copy the folder again") -> Iterator[None]:
    """Say in our words whatever a library raises for a folder it does not understand.

    Raises:
        ModelError: it raised; our own errors pass.
    """
    try:
        yield
    except ArealError:
        raise
    except Exception as error:  # types, divisions, depths, its own: each way to spoil a folder has another
        raise ModelError(what, why=str(error) or type(error).__name__, fix=fix) from error


def check_sizes(path: str) -> None:
    """Refuse a folder whose config.json has other sizes than its tensors, before anything of these sizes is made.

    Raises:
        ModelError: no weights or torn ones, an index that names no file of the folder, or a size no tensor has.
    """
    folder = Path(path).expanduser()
    config = read_json(folder / "config.json")
    headers = read_headers(folder)
    check_index(folder)
    largest = max((math.prod(header["shape"]) for header in headers.values()), default=0)
    bounds = dict.fromkeys(_SIZES, (max(largest, _HARMLESS), f"no tensor of over {largest} numbers"))
    bounds |= dict.fromkeys(LAYERS, (len(headers), f"{len(headers)} tensors"))
    text = config.get("text_config")
    for key, (most, held) in bounds.items():
        size = (text if isinstance(text, dict) and text else config).get(key)
        if isinstance(size, int) and not 0 <= size <= most:
            raise ModelError(
                f"{key} in {folder / 'config.json'} is {size}", why=f"the folder has {held}", fix=SAME_MODEL
            )


def check_number(path: str, model: Any) -> None:  # Any: transformers is not typed here
    """Refuse a model of far more numbers than the folder has, which would be made up to fill it.

    Args:
        model: on the meta device.

    Raises:
        ModelError: it is.
    """
    stored = sum(math.prod(header["shape"]) for header in read_headers(Path(path).expanduser()).values())
    wanted = sum(parameter.numel() for parameter in model.parameters())
    if wanted > _PACKED * stored + _SMALL:
        raise ModelError(
            f"weights in {path!r} do not match its config.json",
            why=f"they are {stored} numbers, a model of these sizes has {wanted}",
            fix=SAME_MODEL,
        )


def check_index(folder: Path) -> None:
    """Refuse an index of weights that names anything but files of the folder; one without an index passes.

    Raises:
        ModelError: it does, or cannot be read.
    """
    if not (folder / INDEX).is_file():
        return
    files = read_json(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ModelError(
            f"{folder / INDEX} is no index", why="weight_map must name a file for each tensor", fix="copy it again"
        )
    for name in sorted(set(files.values())):
        if Path(name).name != name:
            raise ModelError(
                f"{folder / INDEX} names {name!r}",
                why="weights are read from files of the folder alone",
                fix="copy the folder again, with its weights in it",
            )
