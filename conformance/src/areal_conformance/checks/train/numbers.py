"""Level 5 of a trainer: figures, told and not judged unless the adapter promises some or the run bounds them.

Knows: a stated size, a plain loop of transformers beside the engine, medians of turns.
Does not know: what a good figure is.
"""

from __future__ import annotations

from typing import Any

import torch

from areal_conformance.benches.measuring import grown_in_turns, in_turns, peak_memory
from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.plain import PlainTrainer
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import SCORES
from areal_core.contract.batch import Batch
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
OPTIMIZER = OptimizerSpec(lr=1e-4, weight_decay=0.1)
STEPS = 2
"""Of a trainer's life whose memory is measured: the second has the optimizer's state from the start."""
STEP = "seconds of a step"
TOKENS = "tokens trained a second"
STEP_RATIO = "step of a plain loop / step"
PEAK = "peak memory of a step, MB"
MEMORY_RATIO = "memory of training / that of a plain loop"
SENDING = "seconds of sending the weights"
SENDING_RATIO = "plain copy / sending"
GAP = "log-prob gap of training in {dtype}"
MEAN, MOST, GAP_RATIO = f"{GAP}, mean", f"{GAP}, most", f"{GAP} / that of a plain loop"


@check(
    "train.numbers.step",
    level=Level.NUMBERS,
    law=6,
    spec=SPEC,
    deadline_s=600.0,
    figures=(STEP, TOKENS, STEP_RATIO, PEAK, MEMORY_RATIO),
)
def step(bench: TrainBench) -> None:
    """A step's seconds, tokens a second and peak memory, and its seconds and memory beside those of a plain loop."""
    batch = bench.batch([(8, length) for length in LENGTHS])
    seconds, peak = _timed(bench, batch)
    grown = _grown(bench, batch)
    bench.tell(STEP, seconds["engine"])
    bench.tell(TOKENS, batch.num_tokens / seconds["engine"])
    bench.tell(STEP_RATIO, seconds["plain"] / seconds["engine"])
    bench.tell(PEAK, peak)
    if grown["engine"] and grown["plain"]:  # a trainer in processes of its own has a device's memory to itself
        bench.tell(MEMORY_RATIO, grown["engine"] / grown["plain"])


def _timed(bench: TrainBench, batch: Batch) -> tuple[dict[str, float], float]:
    """Return the seconds of a step of engine and plain loop, and the megabytes held in the engine's."""
    device = bench.target.locator.device
    with bench.engine(model=bench.model(**SIZE), optimizer=OPTIMIZER) as engine:
        engine.train_step(batch, PolicyGradient())
        with peak_memory(device) as peak:
            engine.train_step(batch, PolicyGradient())
        plain = PlainTrainer(bench.model(**SIZE), dtype=bench.dtype, device=device, lr=OPTIMIZER.lr)
        seconds = in_turns(
            {
                "engine": lambda: engine.train_step(batch, PolicyGradient()).loss,
                "plain": lambda: plain.step(batch),
            }
        )
    return seconds, peak.megabytes


def _grown(bench: TrainBench, batch: Batch) -> dict[str, float]:
    """Return the bytes that the life of an engine and of a plain loop add to what is there without them."""
    device, model = bench.target.locator.device, bench.model(**SIZE)

    def trained() -> None:
        with bench.engine(model=model, optimizer=OPTIMIZER) as engine:
            for _ in range(STEPS):
                engine.train_step(batch, PolicyGradient())

    def trained_plainly() -> None:
        plain = PlainTrainer(model, dtype=bench.dtype, device=device, lr=OPTIMIZER.lr)
        for _ in range(STEPS):
            plain.step(batch)

    return grown_in_turns(device, {"engine": trained, "plain": trained_plainly})


@check(
    "train.numbers.send",
    level=Level.NUMBERS,
    law=7,
    spec=SENT,
    deadline_s=300.0,
    figures=(SENDING, SENDING_RATIO),
)
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
    bench.tell(SENDING, seconds["engine"])
    bench.tell(SENDING_RATIO, seconds["copy"] / seconds["engine"])


@check(
    "train.numbers.logprobs",
    level=Level.NUMBERS,
    law=1,
    spec=COLUMNS,
    deadline_s=300.0,
    figures=(MEAN, MOST, GAP_RATIO),
)
def logprobs(bench: TrainBench) -> None:
    """How far log-probs are from the float64 truth in every dtype the backend has, also beside a plain loop's."""
    batch = bench.batch([(8, length) for length in LENGTHS])
    model = bench.model(**SIZE)
    with torch.no_grad():
        wanted = Oracle(model).columns(batch)[Output.LOGPROBS]
    mask = batch.tokens["loss_mask"] & (batch.positions > 0)
    for dtype in bench.target.adapter.dtypes:
        with bench.engine(model=model, dtype=dtype) as engine:
            got = engine.forward(batch, SCORES).tokens[Output.LOGPROBS]
        plain = PlainTrainer(model, dtype=dtype, device=bench.target.locator.device, lr=OPTIMIZER.lr).logprobs(batch)
        gap, usual = ((one.detach().double() - wanted).abs()[mask] for one in (got, plain))
        bench.tell(MEAN.format(dtype=dtype), float(gap.mean()))
        bench.tell(MOST.format(dtype=dtype), float(gap.max()))
        bench.tell(GAP_RATIO.format(dtype=dtype), float(gap.mean() / usual.mean()))
