"""Law 6: loss, gradient and metrics do not depend on micro-batches, packing order or empty shards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_algorithms.objectives.ppo import PPOConfig, PPOObjective
from areal_algorithms.objectives.sft import SFTConfig, SFTObjective
from areal_algorithms.objectives.value import ValueConfig, ValueObjective
from areal_algorithms.reduction import Normalizer
from areal_algorithms.surrogates import Surrogate
from areal_core.algorithms.config import (
    Aggregate,
    BehaviourConfig,
    BehaviourMetric,
    BehaviourWeight,
    KLEstimator,
    KLLossConfig,
    Proximal,
    RatioLevel,
)
from areal_core.contract.batch import Batch
from areal_core.contract.train import Objective
from areal_torch.testing.batches import batches

from .cases import Bigram, with_columns

GSPO = PPOConfig(
    ratio_level=RatioLevel.SEQUENCE,
    normalizer=Normalizer.SEQUENCES,
    proximal=Proximal.LOGLINEAR,
    behaviour=BehaviourConfig(mode=BehaviourWeight.MASK, level=RatioLevel.SEQUENCE, upper=1.5),
)
SOFT = PPOConfig(
    surrogate=Surrogate.SOFT_GATE,
    ratio_level=RatioLevel.SEQUENCE,
    ratio_aggregate=Aggregate.SUM,
    kl_loss=KLLossConfig(coefficient=0.1, estimator=KLEstimator.K3),
)
CISPO = PPOConfig(
    surrogate=Surrogate.CISPO,
    clip_low=1.0,
    normalizer=Normalizer.CONSTANT,
    constant_tokens=9,
    proximal=Proximal.RECOMPUTE,
    behaviour=BehaviourConfig(
        mode=BehaviourWeight.MASK,
        metric=BehaviourMetric.K3,
        level=RatioLevel.SEQUENCE,
        aggregate=Aggregate.MAX,
        upper=0.4,
    ),
)
M2PO = PPOConfig(
    surrogate=Surrogate.UNCLIPPED,
    proximal=Proximal.RECOMPUTE,
    behaviour=BehaviourConfig(mode=BehaviourWeight.SECOND_MOMENT),
    kl_loss=KLLossConfig(coefficient=0.1),
)
OBJECTIVES: list[Objective] = [
    PPOObjective(PPOConfig(dual_clip=3.0, entropy_coefficient=0.01)),
    PPOObjective(
        PPOConfig(proximal=Proximal.RECOMPUTE, behaviour=BehaviourConfig(mode=BehaviourWeight.MASK, upper=1.2))
    ),
    PPOObjective(GSPO),
    PPOObjective(SOFT),
    PPOObjective(CISPO),
    PPOObjective(M2PO),
    ValueObjective(ValueConfig()),
    SFTObjective(SFTConfig(normalizer=Normalizer.SEQUENCES)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "objective", OBJECTIVES, ids=["ppo", "decoupled", "gspo", "soft", "cispo", "m2po", "value", "sft"]
)
@settings(max_examples=25, deadline=None)
@given(batch=batches(min_groups=1), seed=st.integers(0, 99), data=st.data())
def test_any_cut_of_a_batch_gives_one_gradient(
    objective: Objective, dtype: torch.dtype, batch: Batch, seed: int, data: st.DataObject
) -> None:
    """Sequences in any order over any number of micro-batches, empty ones too: same loss, gradient, metrics."""
    batch = with_columns(batch, seed)
    model = Bigram(seed, dtype)
    order = data.draw(st.permutations(range(batch.num_sequences)), label="order")
    home = data.draw(st.lists(st.integers(0, 3), min_size=len(order), max_size=len(order)), label="micro-batch")
    plan = [[row for row, place in zip(order, home, strict=True) if place == number] for number in range(4)]
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12

    whole, loss, metrics = model.gradient(objective, [batch])
    parts, sum_of_losses, sum_of_metrics = model.gradient(objective, batch.split(plan))

    assert float((whole - parts).norm()) <= tolerance * float(whole.norm()) + 1e-12
    assert loss == pytest.approx(sum_of_losses, rel=tolerance, abs=1e-6)
    for name, total in metrics.items():
        assert total.weight == sum_of_metrics[name].weight, name
        assert total.value == pytest.approx(sum_of_metrics[name].value, rel=1e-4, abs=1e-4), name
