"""An adapter belongs to the weights it was trained over and to its scale: beside a saved model, and in a state.

Knows: PEFT's folder format, saved folders and states of another base.
Does not know: what an adapter learns (`optional_lora`).
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.checks.train.optional_adapter import amounts_to
from areal_conformance.checks.train.optional_lora import ADAPTER, QUICK, TARGETS, is_target
from areal_conformance.oracles.train_compare import close, same
from areal_conformance.outcome import Exempt, expect, raises
from areal_core.contract.errors import CheckpointError
from areal_core.contract.train import LoraSpec
from areal_torch.testing.objectives import PolicyGradient

OF_SINGLE_LAYERS = LoraSpec(rank=2, alpha=3.0, targets=TARGETS[3])
"""Whose targets name one layer each: the ends of their names would name more."""
OF_FRACTIONS = (
    LoraSpec(rank=4, alpha=0.5, targets=("q_proj",)),
    LoraSpec(rank=8, alpha=16.0 * 8**0.5, targets=("v_proj", "down_proj")),
)
"""Of an alpha below 1, and of one as a rank-stabilised adapter has it: rounded, the first has no effect at all."""
_check = partial(check, level=Level.SINGLE, spec="train#lora", requires=("lora",), since=(1, 1))


@_check("train.lora.beside", law=7)
def beside(bench: TrainBench) -> None:
    """An adapter that is written beside the merged model amounts to it, by the rank, alpha and layers its file says."""
    for number, lora in enumerate((ADAPTER, OF_SINGLE_LAYERS, *OF_FRACTIONS)):
        folder = bench.folder / f"model-{number}"
        with bench.engine("lora", lora=lora, optimizer=QUICK) as engine:
            for step in range(2 + (number == 0)):
                engine.train_step(bench.batch(seed=step), PolicyGradient())
            engine.save_weights(folder)
        told = sorted(folder.rglob("adapter_config.json"))
        if not told:
            bench.notes.append("no adapter is written beside the merged model")
        for path in told:
            _amounts_to_the_merged(bench, folder, path, lora)


def _amounts_to_the_merged(bench: TrainBench, folder: Path, path: Path, lora: LoraSpec) -> None:
    said = json.loads(path.read_text())
    expect(said["r"] == lora.rank, f"adapter_config.json says r {said['r']}, the rank is {lora.rank}")
    same_alpha = abs(said["lora_alpha"] - lora.alpha) < 1e-6 * lora.alpha and not said.get("use_rslora")
    expect(same_alpha, f"adapter_config.json says lora_alpha {said['lora_alpha']}, alpha is {lora.alpha}")
    base, merged = read_folder(bench.model()), read_folder(folder)
    named = tuple(said["target_modules"])
    odd = sorted(name for name in base if is_target(name, named) != is_target(name, lora.targets))
    expect(not odd, f"adapter_config.json names {list(named)}, so another set of layers: {', '.join(odd[:3])}")
    wanted = amounts_to(base, load_file(path.with_name("adapter_model.safetensors")), lora)
    for name, tensor in merged.items():
        close(bench, f"{name} as saved, and by the adapter beside it", tensor.float(), wanted[name], atol=1e-5)


@_check("train.lora.rounded_once", law=7, level=Level.FAULTS, requires=("lora", "precision.bfloat16"))
def rounded_once(bench: TrainBench) -> None:
    """In bfloat16 the merged model is base and adapter added up as they are, and rounded once, to nearest."""
    model, folder = _rounded(bench), bench.folder / "merged"
    with bench.engine("lora", model=model, dtype="bfloat16", lora=ADAPTER, optimizer=QUICK) as engine:
        for seed in range(2):
            engine.train_step(bench.batch(seed=seed), PolicyGradient())
        engine.save_weights(folder)
        sent = bench.sent(engine)
    told = sorted(folder.rglob("adapter_model.safetensors"))
    if not told:
        raise Exempt("no adapter is written beside the merged model")
    adapter = load_file(told[0])
    if any(tensor.dtype != torch.float32 for tensor in adapter.values()):
        raise Exempt("the adapter beside the merged model is rounded itself")
    wanted = amounts_to(read_folder(model), adapter, ADAPTER)
    for name in wanted:
        if is_target(name, ADAPTER.targets):
            off = float((sent[name].float() != wanted[name].to(torch.bfloat16).float()).float().mean())
            expect(off < 0.01, f"{off:.1%} of {name}, as it is sent, is not base and adapter rounded to nearest")


def _rounded(bench: TrainBench) -> Path:
    """Return the model with numbers that bfloat16 has."""
    folder = bench.folder / "rounded"
    shutil.copytree(bench.model(), folder)
    for file in folder.glob("*.safetensors"):
        tensors = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})
    return folder


@_check("train.lora.state_of_base", law=4, requires=("lora", "checkpoint.exact"))
def state_of_base(bench: TrainBench) -> None:
    """The state of an adapter over other weights of the same shapes, if only one of them, is refused without effect."""
    last = max(read_folder(bench.model()))
    others = {"all weights": bench.model(seed=5), last: _other(bench, last)}
    for number, model in enumerate(others.values()):
        with bench.engine("lora", model=model, lora=ADAPTER, optimizer=QUICK) as engine:
            engine.train_step(bench.batch(), PolicyGradient())
            engine.save_state(bench.folder / f"state{number}")
    with bench.engine("lora", lora=ADAPTER, optimizer=QUICK) as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        before = bench.sent(engine)
        for number, what in enumerate(others):
            load = partial(engine.load_state, bench.folder / f"state{number}")
            raises(CheckpointError, f"a state of an adapter over a model with other numbers in {what}", load)
            same("weights after that state was refused", bench.sent(engine), before)


def _other(bench: TrainBench, name: str) -> Path:
    """Return the model with other numbers in one tensor."""
    folder = bench.folder / f"other-{name}"
    shutil.copytree(bench.model(), folder)
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            save_file({**tensors, name: tensors[name] + 0.25}, file, {"format": "pt"})
    return folder
