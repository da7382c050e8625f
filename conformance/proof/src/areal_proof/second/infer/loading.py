"""A model folder made ready to serve, or the reason why it cannot be.

Knows: layouts, dtypes, context lengths, the tokenizer beside the model.
Does not know: requests or versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from areal_core.contract.errors import CapabilityError, ModelError
from areal_core.contract.inference import InferenceSpec
from areal_core.contract.train import Head
from areal_core.contract.workflow import Tokenizer
from areal_proof.second.architecture import Architecture, read_architecture, read_config
from areal_proof.second.infer.ranks import Cut
from areal_proof.second.infer.stage import DTYPES, EMBEDDING, HEAD, Needs, read_tensors


@frozen(kw_only=True, eq=False)
class Loaded:
    """What does not change while an engine serves, and the weights it begins with."""

    spec: InferenceSpec
    shape: Architecture
    needs: Needs
    context: int
    end_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    weights: dict[str, Tensor]

    @property
    def cut(self) -> Cut:
        """Return how the model is cut."""
        return cut_of(self.spec, self.shape.layers)


def cut_of(spec: InferenceSpec, layers: int) -> Cut:
    """Return how a layout cuts a model.

    Raises:
        CapabilityError: along axes this engine does not know, into more stages than layers, or both ways over hosts.
    """
    cut = Cut(layers, spec.layout.get("t", 1), spec.layout.get("p", 1))
    if any(degree > 1 for axis, degree in spec.layout.items() if axis not in ("d", "t", "p")):
        raise _refused(spec, "the second engine cuts the stack of layers and linear layers, nothing else")
    if cut.stages > layers:
        raise _refused(spec, f"the model has {layers} layers, and a stage needs one")
    if spec.part is not None and min(cut.stages, cut.ranks) > 1:
        raise _refused(spec, "over several hosts the second engine cuts one way only")
    return cut


def _refused(spec: InferenceSpec, why: str) -> CapabilityError:
    return CapabilityError(f"layout {dict(spec.layout)} cannot be served", why=why, fix="use d, t and p within that")


def load(spec: InferenceSpec) -> Loaded:
    """Read a folder onto its device.

    Raises:
        ModelError: no folder, or a model, dtype or context this engine cannot serve.
        CapabilityError: a layout that this engine cannot serve.
    """
    if spec.dtype not in DTYPES:
        raise ModelError(f"dtype {spec.dtype!r} cannot be served", why=f"allowed are {', '.join(DTYPES)}")
    folder, dtype, device = Path(spec.model_path), DTYPES[spec.dtype], torch.device(spec.device)
    shape, tensors = read_architecture(spec.model_path), read_tensors(folder)
    cut_of(spec, shape.layers)
    context = spec.context_length or shape.context
    if not 0 < context <= shape.context:
        raise ModelError(
            f"a context of {context} tokens does not fit model {spec.model_path!r}",
            why=f"its config.json allows {shape.context} positions",
            fix=f"set rollout.context_length between 1 and {shape.context}",
        )
    if shape.tied:
        tensors.pop(HEAD, None)
    _check_tensors(
        spec.model_path, shape.shapes(Head.CAUSAL_LM), {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    )
    return Loaded(
        spec=spec,
        shape=shape,
        needs=Needs(
            shapes=shape.shapes(Head.CAUSAL_LM),
            tied={HEAD: EMBEDDING} if shape.tied else {},
            dtype=dtype,
            device=device,
        ),
        context=context,
        end_ids=_end_ids(folder),
        tokenizer=_tokenizer(folder),
        weights={name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()},
    )


def _check_tensors(path: str, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        has, wants = found.get(name, "missing"), wanted.get(name, "none of the model's")
        raise ModelError(
            f"weights in {path!r} do not match its config.json",
            why=f"{len(wrong)} tensors differ: {name} is {has}, by the config it is {wants}",
            fix="copy the folder again",
        )


def _end_ids(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end an output, of generation_config.json or else of config.json."""
    found = None
    if (folder / "generation_config.json").is_file():
        found = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
    found = read_config(str(folder)).get("eos_token_id") if found is None else found
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)


def _tokenizer(folder: Path) -> Tokenizer | None:
    """Return the folder's tokenizer if it has one; only stop strings need it."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    found: Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return found
