"""What a Hugging Face model folder says of itself, read without torch or transformers.

Knows: config.json and safetensors headers.
Does not know: how to build the model (`areal_torch.hf`).
"""

from __future__ import annotations

import json
import math
import os
import reprlib
import struct
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.errors import ModelError
from areal_core.plugins.extensions import extension
from areal_core.plugins.install import pip_install

_MAX_JSON = 100_000_000  # bytes; what safetensors allows a header
_UNEXPECTED = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error)
LAYERS, _MOST_LAYERS = ("num_hidden_layers", "n_layer", "num_layers"), 100_000
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_WITH_IMAGES = "ForConditionalGeneration"


@frozen(kw_only=True)
class ModelFolder:
    """The facts a plan needs. `num_parameters` counts stored tensors; tied ones are stored once.

    `experts_per_token` is 0 where every token passes the same layers. `image_token_id` is the placeholder of an
    image, None for a model that takes none.
    """

    path: Path
    architecture: str
    context_length: int
    vocab_size: int
    num_parameters: int
    has_tokenizer: bool
    experts_per_token: int = 0
    model_type: str = ""
    image_token_id: int | None = None

    @property
    def sees(self) -> bool:
        """Return whether the model has a part for images, even one that no token stands for."""
        return self.image_token_id is not None or self.architecture.endswith(_WITH_IMAGES)


def local_folder(path: str) -> Path:
    """Return the folder that a path, or a name on the hub, stands for; it need not be there. Raises ModelError."""
    folder = Path(os.path.expanduser(path))  # noqa: PTH111  a user who is not here is left as written
    if path and not os.path.exists(folder) and (hub := extension("hub")) is not None:  # noqa: PTH110  as below
        folder = hub.folder(path) or folder
    return folder


def inspect_model(path: str, *, images: bool = False) -> ModelFolder:
    """Read a model folder; with `images` it may also be of a model that takes images beside text.

    Raises:
        ModelError: not a folder, no config.json, not a causal language model, or no weights.
    """
    folder = local_folder(path)
    if not path or not os.path.isdir(folder):  # noqa: PTH112  nor does this raise for a name that is too long
        raise ModelError(
            f"model folder {path!r} does not exist" if path else "no model given",
            why="a model is a local folder in Hugging Face format, or with areal-hub a name on the hub",
            fix=f"set model.path to a folder, or to ORGANISATION/NAME ({pip_install('areal-hub')})",
        )
    if not (folder / "config.json").exists():
        raise ModelError(
            f"model folder {path!r} has no config.json",
            why=f"it holds {', '.join(sorted(os.listdir(folder))[:8]) or 'nothing'}",  # noqa: PTH208  names are enough
            fix="point model.path at the folder that save_pretrained or `hf download` wrote",
        )
    config = read_json(folder / "config.json")
    architectures = [name for name in _entry(folder, config, list, "architectures") or [] if isinstance(name, str)]
    endings = (*_CAUSAL, _WITH_IMAGES) if images and "vision_config" in config else _CAUSAL
    causal = [name for name in architectures if name.endswith(endings)]
    if not causal:
        raise ModelError(
            f"model folder {path!r} holds no causal language model",
            why=f"config.json names {', '.join(architectures) or 'no architecture'}",
            fix="use a model whose architecture ends in ForCausalLM",
        )
    text = _entry(folder, config, dict, "text_config") or config
    token = _entry(folder, config, int, "image_token_id", "image_token_index")
    return ModelFolder(
        path=folder,
        architecture=causal[0],
        context_length=_entry(folder, text, int, "max_position_embeddings", "n_positions") or 0,
        vocab_size=_entry(folder, text, int, "vocab_size") or 0,
        num_parameters=sum(math.prod(tensor["shape"]) for tensor in read_headers(folder).values()),
        has_tokenizer=(folder / "tokenizer_config.json").is_file() or (folder / "tokenizer.json").is_file(),
        experts_per_token=_entry(folder, text, int, "num_experts_per_tok") or 0,
        model_type=_entry(folder, config, str, "model_type") or "",
        image_token_id=token if "vision_config" in config else None,
    )


def read_json(file: Path) -> dict[str, Any]:
    """Return the object that a json file of a model folder holds, or raise ModelError. Any: json."""
    try:
        if not file.is_file() or file.stat().st_size > _MAX_JSON:
            raise ValueError(f"it is no regular file of at most {_MAX_JSON} bytes")
        if isinstance(found := json.loads(file.read_bytes()), dict):
            return found
        raise TypeError("it must hold a json object")
    except _UNEXPECTED as error:
        raise ModelError(f"{file} cannot be read", why=str(error), fix="copy it again") from None


def _entry(folder: Path, config: dict[str, Any], kind: type[Any], *keys: str) -> Any:
    """Return the first of these entries that config.json has. Any: of `kind`; whole numbers are sizes or token ids."""
    key = next((key for key in keys if config.get(key) is not None), keys[0])
    value: Any = config.get(key)
    if value is None or (type(value) is kind and (kind is not int or 0 <= value < 2**31)):
        return value
    why = f"it must be of type {kind.__name__}" + (", from 0 to 2147483647" if kind is int else "")
    raise ModelError(f"{key} in {folder / 'config.json'} is {reprlib.repr(value)}", why=why, fix="copy it again")


def read_headers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every stored tensor's header by name: dtype, shape, data_offsets. Any: safetensors' own.

    Raises:
        ModelError: no weights, a file that is not whole, or one of any kind that cannot be read to its end.
    """
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelError(f"{path} is no regular file", why="reading it might never end", fix="remove it")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"model folder {str(folder)!r} has no *.safetensors",
            why="weights in pickle files are not loaded",
            fix="convert them with transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(DIR)",
        )
    return {name: tensor for file in files for name, tensor in _header(file).items()}


def _header(file: Path) -> dict[str, dict[str, Any]]:
    try:
        with file.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            room = file.stat().st_size - 8 - size
            if room < 0 or size > _MAX_JSON:
                raise ValueError("the header is longer than the file" if room < 0 else "the header is too long")
            header = json.loads(stream.read(size))
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        for name, tensor in tensors.items():
            (begin, end), shape = tensor["data_offsets"], tensor["shape"]
            most = 2 * (end - begin) if 0 <= begin <= end <= room else -1  # none takes less than 4 bits
            odd = len(shape) > 64 or any(type(length) is not int or not 0 <= length <= most for length in shape)
            if odd or math.prod(shape) > most:
                raise ValueError(f"{name}: shape {reprlib.repr(shape)} at bytes {begin} to {end} of {room}")
        return tensors
    except _UNEXPECTED as error:
        raise ModelError(f"{file} is not a complete safetensors file", why=str(error), fix="copy it again") from None


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a model folder. Any: transformers is not typed here.

    Raises:
        ModelError: the folder has no tokenizer transformers can build from its files alone.
    """
    from transformers import AutoTokenizer

    try:
        config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
        for part in (config, config.get("text_config") or {}):  # transformers makes lists as long as this says
            if any(isinstance(part.get(key), int) and part[key] > _MOST_LAYERS for key in LAYERS):
                raise ValueError(f"config.json says that the model has more than {_MOST_LAYERS} layers")
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:  # whatever transformers and tokenizers raise for files that are no tokenizer
        raise ModelError(
            f"the tokenizer of {path} cannot be loaded",
            why=str(error).splitlines()[0] if str(error) else repr(error),
            fix="save it beside the weights: tokenizer.save_pretrained(DIR)",
        ) from error
