"""Broken pairs that learn, and almost as they should: each step is a little off, or one in many.

Knows: one defect each.
Does not know: how far each leads, which is the certificate's to see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch

from areal_core.contract.train import Output
from areal_proof.mutants.rows import Original, after, breaking, gives, put, row, within
from areal_proof.mutants.train_optimizer import OtherOptimizer
from areal_proof.mutants.train_parts import OtherObjective, Through, hugging_face
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.train.engine import ReferenceTrainEngine
from areal_torch.optimizer import Optimizer

_OF, _PATH = "pair/reference+reference", "pair.learning.path"
breaks = breaking(_OF, ReferenceTrainEngine, side="train")
breaks_optimizer = breaking(_OF, OtherOptimizer, part=("kind", Optimizer), side="train")
breaks_objective = breaking(_OF, OtherObjective, part=("through", Through), side="train")
breaks_infer = breaking(_OF, ReferenceInferenceEngine, side="infer")


@contextmanager
def _dropping(model: Any) -> Iterator[None]:
    """Let the embedding of a transformers model drop numbers. Any: not typed here."""
    hook = model.get_input_embeddings().register_forward_hook(
        lambda _module, _arguments, made: torch.nn.functional.dropout(made, 0.05)
    )
    try:
        yield
    finally:
        hook.remove()


@breaks_optimizer("step", _PATH)
@torch.no_grad()
def NormsDecayMore(original: Original, self: Optimizer) -> Any:
    """Takes the weight decay off norms twice, by a second group of parameters nobody emptied."""
    rate = self.lr
    stepped = original()
    for parameter in self.parameters.values():
        if parameter.ndim == 1:
            parameter.mul_(1.0 - rate * self.spec.weight_decay)
    return stepped


@breaks_optimizer("step", _PATH)
@torch.no_grad()
def MomentsInBfloat16(original: Original, self: Optimizer) -> Any:
    """Keeps the mean of squared gradients in bfloat16 between steps."""
    stepped = original()
    for tensor in self.moments["exp_avg_sq"].values():
        tensor.copy_(tensor.bfloat16().float())
    return stepped


@breaks("train_step", _PATH, count=0)
def OneInTenIsLost(original: Original, self: Any) -> Any:
    """Every tenth step is reported and leaves the weights as they were."""
    self.count += 1
    if self.count % 10:
        return original()
    model = hugging_face(self)
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    report = original()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
    return report


@breaks_infer("commit_weights", _PATH, count=0)
async def StopsAtTheSixthUpdate(original: Original, self: Any) -> None:
    """From the sixth update on new versions are served by the weights of the fifth."""
    self.count += 1
    parameters = dict(self.running.stage.model.named_parameters())
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items()} if self.count > 5 else {}
    await original()
    for name, tensor in kept.items():
        parameters[name].data.copy_(tensor)


OPTIMIZER_ROWS = breaks_optimizer.rows(
    row("RateOnePercentHigh", "Steps one percent further than the rate it reports.", _PATH,
        step=within(lambda self: put(self, spec=attrs.evolve(self.spec, lr=1.01 * self.spec.lr)))),
    row("ScheduleEndsEarly", "Arrives at the floor of its schedule two steps early, and tells the right rate.", _PATH,
        step=within(lambda self: put(self, spec=attrs.evolve(self.spec, total_steps=max(self.spec.total_steps - 2,
            self.spec.warmup_steps + 1) if self.spec.total_steps else 0)))),
    row("ClipsALittle", "Clips to a norm one percent below `max_grad_norm`.", _PATH,
        step=within(lambda self: put(self, spec=attrs.evolve(self.spec, max_grad_norm=0.99 *
            self.spec.max_grad_norm)))),
)  # fmt: skip


OBJECTIVE_ROWS = breaks_objective.rows(
    row("GradientOnePercentOff", "Scales the gradient by 1.01 and tells the right loss.", _PATH,
        loss=after(lambda result: (result[0] + 0.01 * (result[0] - result[0].detach()), result[1]))),
    row("LossOnePercentOff", "Reports a loss one percent too large.", _PATH,
        loss=after(lambda result: (result[0] + 0.01 * result[0].detach(), result[1]))),
    row("ForgetsTheBehaviour", "Shows objectives the log-probs of now in place of those that were sampled with.",
        _PATH, loss=lambda original, columns, batch, normalizer: original(columns,
            batch.with_tokens(logprobs=columns[Output.LOGPROBS].detach()), normalizer)),
)  # fmt: skip


ROWS = breaks.rows(
    row("TrainsAtTemperatureOne", "Scores at the temperature of the spec, and trains at 1.", _PATH,
        incident="AReaL#1290", row="logprob-gap",
        train_step=within(lambda self: put(self.trainer.model.packed, divisor=1.0))),
    row("DropsOutInSteps", "Leaves dropout on while it trains.", _PATH,
        train_step=within(lambda self: _dropping(hugging_face(self)))),
)  # fmt: skip


def _rounded(logprobs: Any, dtype: torch.dtype) -> tuple[float, ...]:
    """Return log-probs as a buffer of another dtype has them. Any: a sequence of numbers."""
    return tuple(torch.tensor(logprobs).to(dtype).tolist())


INFER_ROWS = breaks_infer.rows(
    row("LogprobsInHalf", "Hands log-probs over in half precision.", _PATH,
        generate=gives(logprobs=lambda result: _rounded(result.logprobs, torch.float16))),
    row("SamplesALittleHot", "Draws at a temperature one percent higher than asked, and tells what it drew from.",
        _PATH, generate=lambda original, request: original(attrs.evolve(request,
            sampling=attrs.evolve(request.sampling, temperature=1.01 * request.sampling.temperature)))),
)  # fmt: skip
