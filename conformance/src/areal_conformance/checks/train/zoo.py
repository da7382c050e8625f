"""Models drawn from what families can be like, scored, stepped and saved as transformers does in float64.

Knows: which drawn models a backend claims, and what must be right of each.
Does not know: families (`areal_conformance.zoo`), or how an engine builds or loads them.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from areal_conformance.benches.train import Shape, TrainBench, read_folder
from areal_conformance.check import Level, Row, family
from areal_conformance.oracles.train import Gradient
from areal_conformance.oracles.train_compare import SCORES, close, number, same, weights_close
from areal_conformance.oracles.train_optimizer import DESCENT
from areal_conformance.outcome import Violation, expect
from areal_conformance.zoo.architectures import ARCHITECTURES
from areal_conformance.zoo.folders import folder_of
from areal_conformance.zoo.sample import claimed, unclaimed, unnamed
from areal_conformance.zoo.traits import Drawn
from areal_conformance.zoo.truth import Truth
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, CapabilityError, ModelError
from areal_core.contract.train import Output
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#models"
SHAPES: tuple[Shape, ...] = ((2, 3), (1, 5), (3, 50), "0110100", (6, 30))
"""Beyond the positions models were trained with before their rotary positions were scaled, and short ones beside."""
TEMPERATURE = 0.8
"""Of scores and steps: it comes after whatever a family does to its logits, biases and caps among them."""
OF_FLOAT32 = 8.0
"""How many times as far from float64 as transformers' own float32 an engine may be."""
REWRITTEN = {"dtype", "torch_dtype", "architectures", "transformers_version"}
"""What a saved config.json may say otherwise than the one it comes from."""


@family(
    "train.zoo.{architecture}",
    {name: Row(f"Models of type {name}, whatever their config.json says,", name) for name in ARCHITECTURES},
    level=Level.SINGLE,
    law=8,
    spec=SPEC,
    deadline_s=120.0,
)
def drawn(bench: TrainBench, architecture: str) -> None:
    """{...} are scored, trained and saved as transformers does it, or refused when the engine starts if not claimed."""
    for model in claimed(bench.target, architecture):
        right(bench, model)
    for model in unclaimed(bench.target, architecture):
        if not refused(bench, model):
            right(bench, model)
            bench.notes.append(unnamed(model))


def refused(bench: TrainBench, model: Drawn) -> bool:
    """Tell whether an engine refuses a model when it starts; expect of a refusal that it says why."""
    engine = bench.fresh()
    try:
        engine.start(bench.spec(model=folder_of(model)), bench.rank_context())
    except (ModelError, CapabilityError) as error:
        expect(bool(error.why or error.fix), f"{model} is refused without a reason")
        return True
    except ArealError as error:
        kinds = "ModelError or CapabilityError"
        raise Violation(f"{model} is refused with {type(error).__name__}, not with {kinds}: {error}") from error
    finally:
        engine.close()
    return False


def right(bench: TrainBench, model: Drawn) -> None:
    """Expect scores, one step and the saved folder of a model to be right."""
    folder, batch, told = folder_of(model), bench.batch(SHAPES, seed=model.seed), str(model)
    oracle = Truth(folder, temperature=TEMPERATURE)
    saved = bench.folder / f"{model.architecture}-{len(list(bench.folder.iterdir()))}"
    wanted = {name: column.detach() for name, column in oracle.columns(batch).items()}
    noise = noise_of(folder, batch, wanted)
    with bench.engine(model=folder, optimizer=DESCENT, temperature=TEMPERATURE) as engine:
        got = engine.forward(batch, SCORES)
        for name in sorted(SCORES):
            allowed = 2e-5 + OF_FLOAT32 * noise[name]
            close(bench, f"{name} of {told}", got.tokens[name], wanted[name], atol=allowed)
        report = engine.train_step(batch, PolicyGradient())
        engine.save_weights(saved)
        after = engine.forward(batch, SCORES)
    slope = oracle.gradient(batch, PolicyGradient())
    number(bench, f"the loss of {told}", report.loss, slope.loss, atol=1e-5, rtol=1e-4)
    number(bench, f"the gradient norm of {told}", report.grad_norm, slope.norm, atol=1e-5, rtol=1e-3)
    stepped(bench, told, folder, saved, slope)
    again = Truth(saved, temperature=TEMPERATURE).columns(batch)
    for name in sorted(SCORES):
        allowed = 1e-4 + OF_FLOAT32 * noise[name]
        close(bench, f"{name} after a step of the saved {told}", after.tokens[name], again[name], atol=allowed)
    says_the_same(saved, folder, told)


def noise_of(folder: Path, batch: Batch, wanted: dict[Output, Tensor]) -> dict[Output, float]:
    """Return how far transformers in float32 is from transformers in float64."""
    oracle = Truth(folder, dtype=torch.float32, temperature=TEMPERATURE)
    return {name: float((column.detach() - wanted[name]).abs().max()) for name, column in oracle.columns(batch).items()}


def stepped(bench: TrainBench, told: str, folder: Path, saved: Path, slope: Gradient) -> None:
    """Expect the saved weights to be those of the folder minus the gradient of one descent."""
    before = read_folder(folder)
    wanted = {
        name: before[name].double() - DESCENT.lr * gradient / (gradient.abs() + DESCENT.eps)
        for name, gradient in slope.by_name.items()
    }
    got = read_folder(saved)
    kept = {name: tensor for name, tensor in got.items() if name not in wanted}
    same(f"tensors of {told} that have no gradient", kept, {name: before[name] for name in kept if name in before})
    trained = {name: tensor for name, tensor in got.items() if name in wanted}
    weights_close(bench, f"{told} minus its gradient", trained, wanted, atol=2e-6 + 5e-5 * slope.norm)


def says_the_same(saved: Path, folder: Path, told: str) -> None:
    """Expect a saved config.json to say what the one it comes from says, word for word; generation_config.json too."""
    name = "generation_config.json"
    if (folder / name).is_file():
        kept = (saved / name).is_file() and json.loads((saved / name).read_text()) == json.loads(
            (folder / name).read_text()
        )
        expect(kept, f"{told}: the saved folder has not the {name} of the model's own")
    left, right = (json.loads((path / "config.json").read_text()) for path in (saved, folder))
    for key in sorted({*left, *right} - REWRITTEN):
        expect(key in left, f"{told}: the saved config.json no longer says {key!r}, which was {right.get(key)!r}")
        if key in right:
            expect(
                left[key] == right[key], f"{told}: the saved config.json says {key} {left[key]!r}, was {right[key]!r}"
            )
