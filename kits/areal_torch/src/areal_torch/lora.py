"""Low-rank adapters beside linear layers: the model stays as it is, A and B are trained, they or merged weights leave.

Knows: W + (alpha / rank) B A, which layers have one, PEFT's folder layout.
Does not know: how parameters are sharded (`gather` makes one whole), or how anything is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import linear

from areal_core.contract.errors import CapabilityError, ModelError, PlanError, WrongType
from areal_core.contract.train import Head, LoraSpec, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_torch import hf
from areal_torch.folder import storage_errors
from areal_torch.group import RankGroup, agree

ADAPTER_FOLDER = "adapter"
"""Where in a model folder the adapter alone lies, for tools that load it beside the base model."""
ADAPTER_FILE = "adapter_model.safetensors"

_A, _B = "lora_A", "lora_B"


class LoraLinear(nn.Linear):
    """W x + (alpha / rank) B A x. W keeps its name; A [rank, in] and B [out, rank] stand beside it."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        """Take over the parameters of `base`. A and B are zero."""
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.alpha, self.scale = alpha, alpha / rank
        like = base.weight
        self.lora_A = nn.Parameter(torch.zeros(rank, base.in_features, device=like.device, dtype=like.dtype))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=like.device, dtype=like.dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Compute the layer."""
        return super().forward(input) + self.scale * linear(linear(input, self.lora_A), self.lora_B)


def add_adapters(model: hf.Model, spec: TrainSpec) -> None:
    """Put an adapter, if the spec has one, on every layer it names, on the model's device.

    A is drawn from the spec's seed in the order of layers: the same numbers on every rank, whatever is sharded later.
    One that begins as a folder has its A and B.

    Raises:
        WrongType: a rank below 1.
        PlanError: no layer has such a name.
        ModelError: the folder the adapter begins as does not fit.
        CapabilityError: a value head, or a named weight that is not that of a plain linear layer.
    """
    if spec.lora is None:
        return
    _check(spec.lora, spec.head)
    generator = torch.Generator().manual_seed(spec.seed)
    for adapted in _put(model, spec.lora):
        bound = adapted.in_features**-0.5
        drawn = (torch.rand(adapted.lora_A.shape, generator=generator) * 2 - 1) * bound
        with torch.no_grad():
            adapted.lora_A.copy_(drawn)
    if spec.lora.path:
        read_adapter(model, Path(spec.lora.path))


def serve_adapter(model: hf.Model, spec: LoraSpec) -> None:
    """Put an adapter to generate with on every layer the spec names: that of its folder, or one that changes nothing.

    Raises:
        PlanError, CapabilityError, ModelError: as `add_adapters`.
    """
    _put(model, spec)
    if spec.path:
        read_adapter(model, Path(spec.path))


def _put(model: hf.Model, spec: LoraSpec) -> list[LoraLinear]:
    """Put an A and a B of zeros on every layer the spec names; return these layers in the model's order."""
    adapted = {name: LoraLinear(base, spec.rank, spec.alpha) for name, base in _targets(model, spec).items()}
    for name, layer in adapted.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, layer)
    return list(adapted.values())


def read_adapter(model: hf.Model, folder: Path) -> None:
    """Fill every A and B of a model with those of a folder in PEFT's format.

    Raises:
        ModelError: a tensor is missing, is one too many, or has another shape; nothing was changed then.
    """
    found = _read_tensors(folder)
    wanted = {peft_name(name): parameter for name, parameter in adapter_parameters(model).items()}
    odd = sorted(set(found) ^ set(wanted)) or [name for name in wanted if found[name].shape != wanted[name].shape]
    if odd:
        shapes = [list(tensors[odd[0]].shape) if odd[0] in tensors else "none" for tensors in (found, wanted)]
        raise ModelError(
            f"the adapter in {str(folder)!r} does not fit the model",
            why=f"{len(odd)} tensors differ: the folder has {shapes[0]} for {odd[0]}, the model {shapes[1]}",
            fix="name an adapter that was trained on this model",
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(found[name])


def peft_name(name: str) -> str:
    """Return the name that PEFT's files have for an A or B of a model."""
    return f"base_model.model.{name}.weight"


@frozen(eq=False)
class AdapterWeights:
    """A and B of a model, as `areal_torch.export` sends them: whole, under PEFT's names."""

    model: hf.Model
    gather: Callable[[Tensor], Tensor]

    @property
    def tied(self) -> Mapping[str, str]:
        """Return nothing: every A and B is sent."""
        return {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the whole shape of each, layer by layer."""
        found = adapter_parameters(self.model).items()
        return {peft_name(name): tuple(parameter.shape) for name, parameter in found}

    def wholes(self, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
        """Yield one at a time. Collective, as `gather` is."""
        for name, parameter in adapter_parameters(self.model).items():
            yield {peft_name(name): self.gather(parameter).detach().to(dtype)}


def adapter_parameters(model: hf.Model) -> dict[str, nn.Parameter]:
    """Return every A and B, none where there is no adapter."""
    return {name: parameter for name, parameter in model.named_parameters() if _is_adapter(name)}


def num_parameters(model: hf.Model) -> int:
    """Return how many numbers the model has, adapters aside."""
    return sum(parameter.numel() for parameter in base_parameters(model).values())


def base_parameters(model: hf.Model) -> dict[str, nn.Parameter]:
    """Return the parameters a model folder has."""
    return {name: parameter for name, parameter in model.named_parameters() if not _is_adapter(name)}


def select_trained(model: hf.Model, *, frozen: bool) -> dict[str, Tensor]:
    """Let gradients reach what is trained and nothing else; return what an exact state holds.

    That is the adapters if there are any, else every parameter, whether or not the role is frozen.
    """
    held = dict[str, Tensor](adapter_parameters(model) or base_parameters(model))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in held and not frozen)
    return held


def merged_tensors(
    model: hf.Model, gather: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a model folder whole and cast, adapters merged in. Collective, as `gather` is.

    Nothing of the model is written to.
    """
    with torch.no_grad():
        for name, parameter in base_parameters(model).items():
            owner, _, leaf = name.rpartition(".")
            layer = model.get_submodule(owner)
            tensor = gather(parameter)
            if isinstance(layer, LoraLinear) and leaf == "weight":
                tensor = tensor + layer.scale * (gather(layer.lora_B) @ gather(layer.lora_A))
            yield name, tensor.to(dtype)


def identity(model: hf.Model, spec: LoraSpec | None) -> dict[str, Any]:  # Any: json
    """Return what a state of an adapter must have in common with the engine that loads it; nothing without one.

    The base weights are among it, whole and in `model`: the state does not hold them and does not work without.
    """
    if spec is None:
        return {}
    base = hashlib.sha256()
    for name, parameter in base_parameters(model).items():
        base.update(f"{name}={fingerprint(parameter)}\n".encode())
    return {"lora": [spec.rank, spec.alpha, sorted(spec.targets)], "base": base.hexdigest()[:16]}


def write_adapter(
    model: hf.Model, base: str, gather: Callable[[Tensor], Tensor], group: RankGroup, folder: Path
) -> None:
    """Write the adapter alone, in PEFT's layout, into a model folder; nothing where there is none. Collective.

    Args:
        base: the folder the model began as.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLinear)}
    tensors: dict[str, Tensor] = {}
    for whole in AdapterWeights(model, gather).wholes(torch.float32):
        if group.rank == 0:
            tensors |= {name: tensor.cpu().contiguous() for name, tensor in whole.items()}

    def write() -> None:
        if not tensors:
            return
        with storage_errors(folder):
            (folder / ADAPTER_FOLDER).mkdir()
            save_file(tensors, folder / ADAPTER_FOLDER / ADAPTER_FILE, metadata={"format": "pt"})
            config = json.dumps(_peft_config(model, layers, base), indent=2)
            (folder / ADAPTER_FOLDER / "adapter_config.json").write_text(config + "\n")

    agree(group, write)


def _peft_config(model: hf.Model, layers: dict[str, LoraLinear], base: str) -> dict[str, Any]:  # Any: json
    """Return adapter_config.json. Layers are named by their ends where these name no other layer."""
    first = next(iter(layers.values()))
    ends = _ends(layers)
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    meant = {name for name in linears if name.rpartition(".")[2] in ends}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": first.lora_A.shape[0],
        "lora_alpha": first.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ends if meant == set(layers) else sorted(layers),
        "inference_mode": True,
    }


def _check(spec: LoraSpec, head: Head) -> None:
    if spec.rank < 1:
        raise WrongType(f"lora.rank is {spec.rank}", why="A has as many rows, at least one", fix="set it to 8")
    if head is Head.VALUE:
        raise CapabilityError(
            "an adapter on a model with a value head is not trained",
            why="only adapters would be, and a new value head is zero",
            fix="train the critic without lora",
        )


def _targets(model: hf.Model, spec: LoraSpec) -> dict[str, nn.Linear]:
    """Return the layers the spec names.

    Experts are matrices of one fused parameter, embeddings and routers modules of their own, the head's logits are
    computed from its weight in chunks: to leave one out silently would train another adapter than was asked for.
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    linears = {name: module for name, module in linears.items() if module is not model.get_output_embeddings()}
    found = {name: module for name, module in linears.items() if name.endswith(spec.targets)}
    for name, parameter in model.named_parameters():
        whole = torch.empty(parameter.shape, device="meta")
        for key, tensor in hf.folder_tensors(model, name, whole).items():
            layer = key.removesuffix(".weight")
            if tensor.ndim > 1 and layer.endswith(spec.targets) and layer not in linears:
                raise CapabilityError(
                    f"lora.targets {list(spec.targets)} name {layer}, which cannot have an adapter",
                    why="adapters sit on linear layers; experts, routers, embeddings and the output layer are none",
                    fix="name layers of the attention, for example q_proj, k_proj, v_proj, o_proj",
                )
    if not found:
        raise PlanError(
            f"lora.targets {list(spec.targets)} name no layer of this model",
            why="a target is the end of a linear layer's name, for example " + ", ".join(_ends(linears)),
            fix="name layers the model has; an adapter on none would train nothing",
        )
    return found


def _ends(names: Iterable[str]) -> list[str]:
    return sorted({name.rpartition(".")[2] for name in names})


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(folder / ADAPTER_FILE)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"the adapter in {str(folder)!r} cannot be read", why=str(error), fix=f"it needs a whole {ADAPTER_FILE}"
        ) from None
    return found


def _is_adapter(name: str) -> bool:
    return name.endswith((f".{_A}", f".{_B}"))
