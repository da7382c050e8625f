"""Whether a PEFT folder fits a served model: engines take layers a model lacks, and halves, without a word.

Knows: names and shapes of low-rank adapters as PEFT saves them.
Does not know: any engine; what it cannot serve of a whole adapter it says itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from areal_core.config.model_folder import read_headers, read_json
from areal_core.contract.errors import ModelError
from areal_torch.adapter_config import CONFIG, read_lora

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"


def check_adapter(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare an adapter's tensors with the model's, `shapes` by Hugging Face name.

    Raises:
        ModelError: no adapter, a layer the model lacks, another width or rank, an A without its B, or more than both.
    """
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{str(folder)!r} is not an adapter folder",
            why=f"it has no {CONFIG}",
            fix="name a folder that peft's save_pretrained wrote",
        )
    headers = {name: tuple(header["shape"]) for name, header in read_headers(folder).items()}
    more = sorted(name for name in headers if not name.endswith((A, B)))
    if more:
        raise ModelError(
            f"the adapter in {str(folder)!r} does not fit the model",
            why=f"{more[0]} is neither A nor B of a layer",
            fix="train it without biases, and without layers that are saved whole",
        )
    rank = read_json(folder / CONFIG).get("r")
    layers = {name.removeprefix(PREFIX).removesuffix(end) for name in headers for end in (A, B) if name.endswith(end)}
    for layer in sorted(layers):
        problem = _problem(layer, headers, shapes) or _other_rank(headers[f"{PREFIX}{layer}{A}"][0], rank)
        if problem:
            raise ModelError(
                f"the adapter in {str(folder)!r} does not fit the model",
                why=f"{layer}: {problem}",
                fix="train it on the model that is served",
            )


def read_scale(folder: Path) -> float:
    """Return what B A is multiplied with. Raises ModelError: an adapter of another kind."""
    found = read_lora("load_adapter", str(folder))
    return found.alpha / found.rank


def _problem(layer: str, headers: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> str:
    a, b = (headers.get(f"{PREFIX}{layer}{end}") for end in (A, B))
    weight = shapes.get(f"{layer}.weight")
    if weight is None:
        return "the model has no such layer"
    if a is None or b is None:
        return f"it has no lora_{'A' if a is None else 'B'}"
    if len(weight) != 2 or a != (a[0], weight[1]) or b != (weight[0], a[0]):
        return f"A {list(a)} and B {list(b)} make no update of a weight {list(weight)}"
    return ""


def _other_rank(found: int, said: object) -> str:
    return "" if said in (None, found) else f"its rank is {found}, {CONFIG} says {said}"
