"""What a served model folder says of its tensors and tokens, read without loading it.

Knows: config.json, generation_config.json, safetensors headers.
Does not know: any engine; that the engine's loader takes exactly these names is for the engine to prove.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

from areal_core.config.model_folder import inspect_model, read_headers, read_json
from areal_core.contract.errors import CoverageError, ModelError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import WeightManifest
from areal_core.weights.coverage import check_names
from areal_core.weights.tensors import torch_dtype
from areal_serving.dialect import ServerFacts

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@frozen(kw_only=True)
class ServedModel:
    """Shapes by tensor name, and the tokens that end an output.

    `tied` maps a name the model shares with another to that other; it is not in `shapes`. `image_token` is the
    placeholder of an image, None for a model that takes none.
    """

    path: Path
    architecture: str
    vocab_size: int
    context_length: int
    num_parameters: int
    end_ids: tuple[int, ...]
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str] = Factory(dict)
    image_token: int | None = None

    @classmethod
    def of(cls, path: str) -> ServedModel:
        """Read a folder.

        Raises:
            ModelError: no folder, no causal language model, no whole weights.
        """
        facts = inspect_model(path, images=True)
        shapes = {name: tuple(header["shape"]) for name, header in read_headers(facts.path).items()}
        config = read_json(facts.path / "config.json")
        tied = _tied(config, shapes)
        return cls(
            path=facts.path,
            architecture=facts.architecture,
            vocab_size=facts.vocab_size,
            context_length=facts.context_length,
            num_parameters=facts.num_parameters,
            end_ids=_end_ids(facts.path, config),
            shapes={name: shape for name, shape in shapes.items() if name not in tied},
            tied=tied,
            image_token=config.get("image_token_id", config.get("image_token_index")),
        )

    def info(self, engine: str, facts: ServerFacts, spec: InferenceSpec) -> EngineInfo:
        """Return what an engine says of itself whose server serves this model."""
        return EngineInfo(
            engine=engine,
            engine_version=facts.engine_version,
            device=spec.device,
            num_parameters=self.num_parameters,
            context_length=facts.context_length,
            details={"architecture": self.architecture, "dtype": spec.dtype, **facts.details},
        )

    def check(self, manifest: WeightManifest) -> None:
        """Check that a sender's tensors and the model's match one to one.

        Raises:
            CoverageError: a name without a partner, another shape, no floating dtype, or a tie of one side only.
        """
        check_names({*self.shapes, *self.tied}, manifest)
        for name, carrier in self.tied.items():
            if manifest.tied.get(name) != carrier:
                raise CoverageError(
                    f"tensor {name!r} has no destination of its own",
                    why=f"the model serving shares it with {carrier!r}, the sender does not",
                    fix="use the same tie_word_embeddings on both sides",
                )
        for name, carrier in manifest.tied.items():
            if name in self.shapes and self.shapes[name] != self.shapes[carrier]:
                raise CoverageError(f"tensor {name!r} cannot be that of {carrier!r}", why="their shapes differ")
        for spec in manifest.tensors:
            if spec.shape != self.shapes[spec.name] or not torch_dtype(spec).is_floating_point:
                raise CoverageError(
                    f"tensor {spec.name!r} was announced as {spec.dtype} {list(spec.shape)}",
                    why=f"the model has {list(self.shapes[spec.name])} floating-point numbers",
                    fix="train and serve the same model",
                )


def _tied(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    text = config.get("text_config") or config
    if not config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)):
        return {}
    carriers = [name for name in shapes if name.endswith(_EMBEDDINGS)]
    return {"lm_head.weight": carriers[0]} if len(carriers) == 1 else {}


def _end_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end tokens: those of generation_config.json, else of config.json."""
    file = folder / "generation_config.json"
    generation = read_json(file) if file.is_file() else {}
    found = generation.get("eos_token_id", config.get("eos_token_id"))
    tokens = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(token) is int for token in tokens):
        raise ModelError(
            f"eos_token_id of {folder} is {reprlib.repr(found)}",
            why="it must be a token id, or a list of them",
            fix="copy config.json and generation_config.json again",
        )
    return tuple(tokens)
