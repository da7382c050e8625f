"""What a Hugging Face model folder says of itself, read without torch or transformers.

Knows: config.json and safetensors headers.
Does not know: how to build the model (`areal_torch.hf`).
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.contract.errors import ModelError

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


def inspect_model(path: str, *, images: bool = False) -> ModelFolder:
    """Read a model folder; with `images` it may also be of a model that takes images beside text.

    Raises:
        ModelError: not a folder, no config.json, not a causal language model, or no weights.
    """
    folder = Path(path).expanduser()
    if not path or not folder.is_dir():
        raise ModelError(
            f"model folder {path!r} does not exist" if path else "no model given",
            why="areal loads models from a local folder in Hugging Face format",
            fix="set model.path to a folder; `hf download ORGANISATION/NAME --local-dir DIR` makes one",
        )
    config = _read_config(folder)
    architectures = config.get("architectures") or []
    endings = (*_CAUSAL, _WITH_IMAGES) if images and "vision_config" in config else _CAUSAL
    causal = [name for name in architectures if name.endswith(endings)]
    if not causal:
        raise ModelError(
            f"model folder {path!r} holds no causal language model",
            why=f"config.json names {', '.join(architectures) or 'no architecture'}",
            fix="use a model whose architecture ends in ForCausalLM",
        )
    text = config.get("text_config", config)
    token = config.get("image_token_id", config.get("image_token_index"))
    return ModelFolder(
        path=folder,
        architecture=causal[0],
        context_length=int(text.get("max_position_embeddings") or text.get("n_positions") or 0),
        vocab_size=int(text.get("vocab_size", 0)),
        num_parameters=sum(math.prod(tensor["shape"]) for tensor in read_headers(folder).values()),
        has_tokenizer=(folder / "tokenizer_config.json").is_file() or (folder / "tokenizer.json").is_file(),
        experts_per_token=int(text.get("num_experts_per_tok") or 0),
        model_type=str(config.get("model_type", "")),
        image_token_id=int(token) if token is not None and "vision_config" in config else None,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise ModelError(
            f"model folder {str(folder)!r} has no config.json",
            why=f"it holds {', '.join(sorted(p.name for p in folder.iterdir())[:8]) or 'nothing'}",
            fix="point model.path at the folder that save_pretrained or `hf download` wrote",
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read", why=str(error)) from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} is not a configuration", why="it must hold a json object")
    return config


def read_headers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every stored tensor's header by name: dtype, shape, data_offsets. Any: safetensors' own.

    Raises:
        ModelError: no weights, or a file that is not whole.
    """
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
            if size > file.stat().st_size:
                raise ValueError("the header is longer than the file")
            header = json.loads(stream.read(size))
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        end = 8 + size + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        if end > file.stat().st_size:
            raise ValueError(f"it has {file.stat().st_size} bytes and its header promises {end}")
        for tensor in tensors.values():
            math.prod(tensor["shape"])
        return tensors
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"{file} is not a complete safetensors file", why=str(error), fix="copy it again") from None


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a model folder. Any: transformers is not typed here.

    Raises:
        ModelError: the folder has no tokenizer transformers can build from its files alone.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the tokenizer of {path} cannot be loaded",
            why=str(error).splitlines()[0] if str(error) else repr(error),
            fix="save it beside the weights: tokenizer.save_pretrained(DIR)",
        ) from error
