"""Claim `weights.adapter` of a trainer: with `send_adapter` A and B leave the engine, alone and as PEFT names them.

Knows: what A and B amount to over the folder's weights, scores, merged folders.
Does not know: how an engine keeps an adapter (`optional_lora` judges what it trains).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations
from pathlib import Path

import attrs
import torch
from safetensors.torch import load_file
from torch import Tensor

from areal_conformance.benches.train import TrainBench, read_folder, same_bits
from areal_conformance.check import Level, check
from areal_conformance.checks.train.optional_lora import ADAPTER, QUICK, TARGETS, is_target
from areal_conformance.oracles.adapters import write_adapter
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import ArealError
from areal_core.contract.train import LoraSpec, Output
from areal_torch.testing.objectives import PolicyGradient

CLAIMS = ("lora", "weights.adapter")
_check = partial(check, level=Level.SINGLE, spec="train#lora", requires=CLAIMS, since=(1, 3))
LOGPROBS = frozenset({Output.LOGPROBS})
PREFIX = "base_model.model."
SCALES = ((3, 6.0), (4, 0.5), (8, 16.0 * 8**0.5))
"""Rank and alpha: a whole number, a fraction, and what a rank-stabilised scale comes to."""
_ALIKE = 0.9
"""Correlation that two draws of some ninety numbers never have by chance, and the same draw has, also rounded."""
_CHANCE = 5.0
"""Standard errors that a mean is off by chance once in two million draws."""


def amounts_to(base: Mapping[str, Tensor], sent: Mapping[str, Tensor], lora: LoraSpec) -> dict[str, Tensor]:
    """Return the weights that A and B amount to over a folder's, float32."""
    merged = {name: tensor.float().clone() for name, tensor in base.items()}
    for name, down in sent.items():
        if name.endswith(".lora_A.weight"):
            up = sent[name.replace("lora_A", "lora_B")]
            layer = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            merged[f"{layer}.weight"] += lora.alpha / lora.rank * (up.float() @ down.float())
    return merged


@_check("train.adapter.sent", law=7)
def sent(bench: TrainBench) -> None:
    """Every A [rank, in] and B [out, rank] of the layers named, no more; B begins as zero, A around it, each apart."""
    model = bench.model()
    base = read_folder(model)
    for names in TARGETS:
        lora = LoraSpec(rank=3, alpha=4.0, targets=names)
        wanted = dict[str, tuple[int, ...]]()
        for name, tensor in base.items():
            if is_target(name, names):
                layer = f"{PREFIX}{name.removesuffix('.weight')}"
                wanted[f"{layer}.lora_A.weight"] = (lora.rank, tensor.shape[1])
                wanted[f"{layer}.lora_B.weight"] = (tensor.shape[0], lora.rank)
        with bench.engine(*CLAIMS, model=model, lora=lora, send_adapter=True) as engine:
            found = bench.sent(engine)
        shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
        odd = sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name))
        told = ", ".join(f"{name} {shapes.get(name)}, expected {wanted.get(name)}" for name in odd[:3])
        expect(not odd, f"with targets {names} was sent: {told}")
        moved = sorted(name for name, tensor in found.items() if "lora_B" in name and bool(tensor.any()))
        expect(not moved, f"before any step {', '.join(moved[:3])} is not zero")
        drawn = torch.cat(
            [each.double().flatten() / each.double().std() for name, each in found.items() if "lora_A" in name]
        )
        off = float(drawn.mean().abs()) * len(drawn) ** 0.5
        expect(off < _CHANCE, f"with targets {names} A is not drawn around zero: its mean is {off:.1f} errors off")
        _drawn_apart({name: each for name, each in found.items() if "lora_A" in name})


def _drawn_apart(drawn: Mapping[str, Tensor]) -> None:
    """Expect no two layers to begin with the same numbers, whatever each scales them by."""
    for (one, left), (two, right) in combinations(drawn.items(), 2):
        common = min(left.numel(), right.numel())
        pair = torch.stack([each.double().flatten()[:common] for each in (left, right)])
        alike = float(torch.corrcoef(pair)[0, 1].abs())
        expect(alike < _ALIKE, f"{one} and {two} begin with the same numbers, {alike:.3f} correlated")


@_check("train.adapter.is_used", law=7)
def is_used(bench: TrainBench) -> None:
    """What is sent after a step is new, and over the folder's weights amounts to what scores and to what is saved."""
    for number, names in enumerate((ADAPTER.targets, TARGETS[3])):
        model = bench.model()
        oracle, base = Oracle(model), read_folder(model)
        lora = LoraSpec(rank=2, alpha=7.0, targets=names)
        with bench.engine(*CLAIMS, model=model, lora=lora, optimizer=QUICK, send_adapter=True) as engine:
            before = bench.sent(engine, 0)
            for step in range(1, 4):
                engine.train_step(bench.batch(seed=step), PolicyGradient())
                now = bench.sent(engine, step)
                stuck = sorted({*now} - {*same_bits(now, before)} - {n for n in now if step == 1 and "lora_A" in n})
                expect(not stuck, f"step {step} left {', '.join(stuck[:3])} as they were sent before")
                batch = bench.batch(seed=20 + step)
                got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
                merged = amounts_to(base, now, lora)
                wanted = oracle.load(merged).columns(batch)[Output.LOGPROBS]
                close(bench, f"log-probs after step {step}, by what is sent", got, wanted, atol=3e-4)
                before = now
            engine.save_weights(bench.folder / f"model-{number}")
        saved = read_folder(bench.folder / f"model-{number}")
        odd = sorted({*saved} ^ {*base})
        expect(not odd, f"the folder saved has other tensors than the model: {', '.join(odd[:4])}")
        for name, tensor in saved.items():
            close(bench, f"{name} as it is saved, merged", tensor.float(), merged[name], atol=1e-5)


@_check("train.adapter.begins", law=7)
def begins(bench: TrainBench) -> None:
    """With `path` the adapter begins as that folder's, whatever the seed, to train or to score; an unfit is refused."""
    model = bench.model()
    for number, (rank, alpha) in enumerate(SCALES):
        lora = LoraSpec(rank=rank, alpha=alpha, targets=("q_proj", "down_proj"))
        begun = attrs.evolve(lora, path=str(bench.folder / f"begun-{number}"))
        write_adapter(Path(begun.path), read_folder(model), rank=rank, alpha=alpha, targets=lora.targets, seed=4)
        _begins_as_its_folder(bench, begun)
    for wrong in (
        attrs.evolve(begun, rank=begun.rank - 1),
        attrs.evolve(begun, targets=("v_proj",)),
        attrs.evolve(begun, path="no"),
    ):
        engine = bench.fresh(*CLAIMS)
        spec = bench.spec(*CLAIMS, model=model, lora=wrong, send_adapter=True)
        context = bench.rank_context()
        raises(ArealError, f"lora {wrong}", lambda e=engine, s=spec, c=context: e.start(s, c))  # type: ignore[misc]


def _begins_as_its_folder(bench: TrainBench, begun: LoraSpec) -> None:
    model, batch = bench.model(), bench.batch(seed=3)
    own = load_file(Path(begun.path) / "adapter_model.safetensors")
    wanted = Oracle(model).load(amounts_to(read_folder(model), own, begun)).columns(batch)[Output.LOGPROBS]
    scale = f"of rank {begun.rank} and alpha {begun.alpha:g}"
    for seed in (1, 2):
        with bench.engine(*CLAIMS, model=model, lora=begun, optimizer=QUICK, send_adapter=True, seed=seed) as engine:
            first = bench.sent(engine, 0)
            for name, tensor in own.items():
                expect(name in first, f"{name} of the folder is not sent")
                same = torch.equal(first[name], tensor.to(first[name].dtype))
                expect(same, f"{name} is not the folder's")
            got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
            close(bench, f"log-probs of an adapter {scale} that begins as a folder", got, wanted, atol=3e-4)
            engine.train_step(bench.batch(seed=1), PolicyGradient())
            stuck = sorted({*first} - {*same_bits(bench.sent(engine, 1), first)})
            expect(not stuck, f"a step left {', '.join(stuck[:3])} as the folder has them")
    with bench.engine(*CLAIMS, model=model, lora=begun, optimizer=None) as engine:
        got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
    close(bench, f"log-probs of a frozen adapter {scale} that begins as a folder", got, wanted, atol=3e-4)
