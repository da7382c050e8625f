"""Level 5 of a trainer: figures, told and not judged unless the adapter promises some (`Adapter.promises`).

Knows: a stated size, a plain loop of transformers beside the engine, medians of turns.
Does not know: what a good figure is.
"""

from __future__ import annotations

from typing import Any

import torch

from areal_conformance.benches.measuring import in_turns, peak_memory
from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.plain import PlainTrainer
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import SCORES
from areal_core.contract.train import OptimizerSpec, Output
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient

SPEC = "train#areal_core.contract.train.TrainEngine.train_step"
SENT = "train#areal_core.contract.train.TrainEngine.send_weights"
COLUMNS = "train#training-engines-and-objectives"
SIZE: dict[str, Any] = {"hidden": 128, "layers": 4, "vocab_size": 2048, "max_position": 512}
"""Arguments of `make_tiny_model`. Any: each has its own type."""
LENGTHS = (20, 24, 28, 32, 36, 40, 44, 48, 56, 64, 80, 96, 128, 160, 224, 320)
"""Of the answers of a batch, long-tailed; prompts have 8 tokens. 1,528 tokens in all."""
LR = 1e-4


@check("train.numbers.step", level=Level.NUMBERS, law=6, spec=SPEC, deadline_s=300.0)
def step(bench: TrainBench) -> None:
    """A step's seconds, tokens a second and peak memory, and a plain loop's seconds over them."""
    model, device = bench.model(**SIZE), bench.target.locator.device
    batch = bench.batch([(8, length) for length in LENGTHS])
    with bench.engine(model=model, optimizer=OptimizerSpec(lr=LR, weight_decay=0.1)) as engine:
        engine.train_step(batch, PolicyGradient())
        with peak_memory(device) as peak:
            engine.train_step(batch, PolicyGradient())
        plain = PlainTrainer(model, dtype=bench.dtype, device=device, lr=LR)
        seconds = in_turns(
            {
                "engine": lambda: engine.train_step(batch, PolicyGradient()).loss,
                "plain": lambda: plain.step(batch),
            }
        )
    bench.tell("seconds of a step", seconds["engine"])
    bench.tell("tokens trained a second", batch.num_tokens / seconds["engine"])
    bench.tell("step of a plain loop / step", seconds["plain"] / seconds["engine"])
    bench.tell("peak memory of a step, MB", peak.megabytes)


@check("train.numbers.send", level=Level.NUMBERS, law=7, spec=SENT, deadline_s=300.0)
def send(bench: TrainBench) -> None:
    """The seconds it takes to send the weights into memory, and those of a plain copy of the same bytes over them."""
    with bench.engine(model=bench.model(**SIZE)) as engine:
        held = [tensor.clone() for tensor in bench.sent(engine).values()]
        seconds = in_turns(
            {
                "engine": lambda: engine.send_weights(MemorySink(), 1),
                "copy": lambda: [tensor.clone() for tensor in held],
            }
        )
    bench.tell("seconds of sending the weights", seconds["engine"])
    bench.tell("plain copy / sending", seconds["copy"] / seconds["engine"])


@check("train.numbers.logprobs", level=Level.NUMBERS, law=1, spec=COLUMNS, deadline_s=300.0)
def logprobs(bench: TrainBench) -> None:
    """How far log-probs are from the float64 truth, on average and at worst, in every dtype the backend has."""
    batch = bench.batch([(8, length) for length in LENGTHS])
    model = bench.model(**SIZE)
    with torch.no_grad():
        wanted = Oracle(model).columns(batch)[Output.LOGPROBS]
    mask = batch.tokens["loss_mask"] & (batch.positions > 0)
    for dtype in bench.target.adapter.dtypes:
        with bench.engine(model=model, dtype=dtype) as engine:
            got = engine.forward(batch, SCORES).tokens[Output.LOGPROBS]
        gap = (got.detach().double() - wanted).abs()[mask]
        bench.tell(f"log-prob gap of training in {dtype}, mean", float(gap.mean()))
        bench.tell(f"log-prob gap of training in {dtype}, most", float(gap.max()))
