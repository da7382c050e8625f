"""The policy objective: every mode against an oracle, published values, and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from attrs import evolve
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_algorithms.objectives.ppo import PPOConfig, PPOObjective
from areal_algorithms.ratios import behaviour_weight, kl_estimate, kl_loss, policy_ratio
from areal_algorithms.reduction import Normalizer, sequence_mean
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
from areal_core.algorithms.sums import means
from areal_core.contract.batch import Batch
from areal_core.contract.train import Objective, Output, Sum
from areal_torch.testing.batches import batches

from . import oracle
from .cases import packed, rows, with_columns

BOUNDS = st.sampled_from([(0.0, 1.3), (0.8, 5.0), (None, 1.3)])


@st.composite
def behaviours(draw: st.DrawFn, proximal: Proximal) -> BehaviourConfig:
    """Any behaviour weight that a plan lets pass."""
    modes = [BehaviourWeight.NONE, BehaviourWeight.CLAMP, BehaviourWeight.MASK]
    mode = draw(st.sampled_from([*modes, BehaviourWeight.SECOND_MOMENT] if proximal is Proximal.RECOMPUTE else modes))
    level = draw(st.sampled_from(RatioLevel))
    masks, of_sequence = mode is BehaviourWeight.MASK, level is RatioLevel.SEQUENCE
    metric = draw(st.sampled_from(BehaviourMetric)) if masks else BehaviourMetric.RATIO
    aggregates = list(Aggregate) if masks else [Aggregate.MEAN, Aggregate.SUM]
    aggregate = draw(st.sampled_from(aggregates)) if of_sequence else Aggregate.MEAN
    ratio = metric is BehaviourMetric.RATIO
    lower, upper = draw(BOUNDS if ratio else st.sampled_from([(None, 0.2), (-0.3, 0.5)]))
    return BehaviourConfig(mode=mode, level=level, metric=metric, aggregate=aggregate, lower=lower, upper=upper)


@st.composite
def ppo_configs(draw: st.DrawFn) -> PPOConfig:
    """Every form of the objective, with whatever goes with it."""
    proximal = draw(st.sampled_from(Proximal))
    surrogate = draw(st.sampled_from(Surrogate))
    dual_clip = draw(st.sampled_from([None, 1.2, 3.0])) if surrogate is Surrogate.CLIP else None
    return draw(_ppo_configs(proximal, surrogate, dual_clip, draw(behaviours(proximal))))


def _ppo_configs(
    proximal: Proximal, surrogate: Surrogate, dual_clip: float | None, behaviour: BehaviourConfig
) -> st.SearchStrategy[PPOConfig]:
    return st.builds(
        PPOConfig,
        surrogate=st.just(surrogate),
        clip_low=st.sampled_from([0.1, 0.2]),
        clip_high=st.sampled_from([None, 0.28]),
        dual_clip=st.just(dual_clip),
        ratio_level=st.sampled_from(RatioLevel),
        ratio_aggregate=st.sampled_from([Aggregate.MEAN, Aggregate.SUM]),
        tau_positive=st.sampled_from([1.0, 0.5]),
        normalizer=st.sampled_from(Normalizer),
        constant_tokens=st.just(7),
        entropy_coefficient=st.sampled_from([0.0, 0.05]),
        proximal=st.just(proximal),
        behaviour=st.just(behaviour),
        kl_loss=st.builds(
            KLLossConfig,
            coefficient=st.sampled_from([0.0, 0.3]),
            estimator=st.sampled_from([KLEstimator.K2, KLEstimator.K3]),
        ),
    )


def _run(objective: Objective, batch: Batch, **columns: Tensor) -> tuple[float, dict[str, Sum]]:
    loss, metrics = objective.loss(columns, batch, objective.normalizer(batch))
    return float(loss), dict(metrics)


def _ppo(batch: Batch, logprobs: list[float], **config: object) -> tuple[float, dict[str, Sum]]:
    return _run(PPOObjective(PPOConfig(**config)), batch, logprobs=torch.tensor(logprobs))


def _oracle(config: PPOConfig, batch: Batch, policy: Tensor, held: Tensor, entropy: Tensor) -> float:
    """Return the loss by the second opinion; `held` is the policy where no gradient passes."""
    behaviour = {
        name: getattr(config.behaviour, name).value for name in ("mode", "metric", "level", "aggregate")
    } | dict(zip(("lower", "upper"), config.behaviour.bounds, strict=True))
    of_batch = {"behaviour": "logprobs", "proximal": "proximal_logprobs", "alpha": "proximal_alpha"}
    of_batch |= {"kept": "behaviour_kept", "reference": "reference_logprobs", "mask": "loss_mask"}
    columns = {name: batch.tokens[column] for name, column in {**of_batch, "advantages": "advantages"}.items()}
    return oracle.ppo_loss(
        rows(batch, **columns, policy=policy, held=held, entropy=entropy),
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        ratio_level=config.ratio_level.value,
        normalizer=config.normalizer.value,
        entropy_coefficient=config.entropy_coefficient,
        proximal=config.proximal.value,
        behaviour=behaviour,
        surrogate=config.surrogate.value,
        ratio_aggregate=config.ratio_aggregate.value,
        taus=(config.tau_positive, config.tau_negative),
        constant_tokens=config.constant_tokens,
        kl=(config.kl_loss.coefficient, config.kl_loss.estimator.value),
    )


def _columns(batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    noise = 0.5 * torch.randn(2, batch.num_tokens, generator=generator, dtype=torch.float64)
    return batch.tokens["logprobs"].double() + noise[0], noise[1].abs()


@settings(max_examples=150, deadline=None)
@given(batch=batches(min_groups=1, max_trajectories=1), seed=st.integers(0, 99), config=ppo_configs())
def test_every_mode_equals_the_oracle(batch: Batch, seed: int, config: PPOConfig) -> None:
    """Surrogates, levels, weights, proximal sources, KL, entropy and all normalisers agree with a loop over tokens."""
    batch = with_columns(batch, seed)
    policy, entropy = _columns(batch, seed)

    actual, metrics = _run(PPOObjective(config), batch, logprobs=policy, entropy=entropy)

    expected = _oracle(config, batch, policy, policy, entropy)
    assert expected == pytest.approx(actual, rel=1e-9, abs=1e-12)
    assert expected == pytest.approx(metrics["loss"].value / max(metrics["loss"].weight, 1), rel=1e-9, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(batch=batches(min_groups=1, max_trajectories=1), seed=st.integers(0, 99), config=ppo_configs())
def test_every_gradient_equals_the_finite_differences_of_the_oracle(batch: Batch, seed: int, config: PPOConfig) -> None:
    """What is held constant is held: the centre of loglinear, the weights, the clipped weight of CISPO."""
    batch = with_columns(batch, seed)
    policy, entropy = _columns(batch, seed)
    generated = batch.tokens["loss_mask"].nonzero().flatten()
    assume(len(generated))
    objective, leaf = PPOObjective(config), policy.clone().requires_grad_()
    objective.loss({"logprobs": leaf, "entropy": entropy}, batch, objective.normalizer(batch))[0].backward()
    assert leaf.grad is not None
    step = 1e-6
    for token in generated[:4].tolist():
        moved = torch.zeros_like(policy)
        moved[token] = step
        up, down = (_oracle(config, batch, policy + sign * moved, policy, entropy) for sign in (1, -1))

        assert (up - down) / (2 * step) == pytest.approx(float(leaf.grad[token]), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("advantage", "dual_clip", "expected"), [(1.0, None, -1.2), (-1.0, None, 1.5), (-1.0, 1.3, 1.3)]
)
def test_published_values_of_the_clip(advantage: float, dual_clip: float | None, expected: float) -> None:
    """Log-ratio ln 1.5 and eps 0.2: a good token is clipped, a bad one is not unless dual clip bounds it."""
    batch = packed([[1]], advantages=[advantage], proximal_logprobs=[0.0])

    loss, metrics = _ppo(batch, [math.log(1.5)], dual_clip=dual_clip)

    assert expected == pytest.approx(loss)
    assert float(advantage > 0) == metrics["clip_fraction"].value
    assert float(dual_clip is not None) == metrics["dual_clip_fraction"].value


def test_the_clip_is_asymmetric() -> None:
    """clip_high 0.28 lets a good token's ratio rise to 1.28, clip_low 0.2 a bad one's fall to 0.8."""
    batch = packed([[1, 1]], advantages=[1.0, -1.0], proximal_logprobs=[0.0, 0.0])

    loss, _ = _ppo(batch, [1.0, -1.0], clip_low=0.2, clip_high=0.28)

    assert pytest.approx(loss) == (-1.28 + 0.8) / 2


@pytest.mark.parametrize(
    ("mode", "expected", "weights"),
    [(BehaviourWeight.MASK, -0.5, [0.0, 1.0]), (BehaviourWeight.CLAMP, -1.5, [2.0, 1.0])],
)
def test_published_values_of_the_behaviour_weight(mode: BehaviourWeight, expected: float, weights: list[float]) -> None:
    """proximal - behaviour = [ln 3, 0], upper 2: half is filtered, and a masked token still counts in N."""
    batch = packed([[1, 1]], advantages=[1.0, 1.0], proximal_logprobs=[math.log(3), 0.0])
    behaviour = BehaviourConfig(mode=mode, upper=2.0)

    loss, metrics = _ppo(batch, [math.log(3), 0.0], proximal=Proximal.RECOMPUTE, behaviour=behaviour)

    weighted = behaviour_weight(batch.tokens["proximal_logprobs"], batch.tokens["logprobs"], batch, behaviour)
    assert expected == pytest.approx(loss)
    assert weights == weighted.weight.tolist()
    assert Sum(value=1.0, weight=2.0) == metrics["behaviour_filtered"]


def test_the_behaviour_weight_is_its_own_choice() -> None:
    """Decoupled with mode `none` has weight 1, whatever the proximal policy is."""
    batch = packed([[1]], advantages=[1.0], proximal_logprobs=[math.log(3)])

    loss, _ = _ppo(batch, [math.log(3)], proximal=Proximal.RECOMPUTE)

    assert pytest.approx(loss) == -1.0


def test_published_values_of_the_sequence_ratio() -> None:
    """Log-ratios .2 .4 and 9 off the mask: ratio exp(.3) and the mean advantage on both tokens, 0 elsewhere."""
    batch = packed([[1, 1, 0]], advantages=[1.0, 2.0, 7.0])

    ratio = policy_ratio(torch.tensor([0.2, 0.4, 9.0]), torch.zeros(3), batch, RatioLevel.SEQUENCE)

    assert pytest.approx(ratio.tolist(), abs=5e-5) == [1.3499, 1.3499, 0.0]
    assert sequence_mean(batch.tokens["advantages"], batch).tolist() == [1.5, 1.5, 0.0]


def test_a_sequence_out_of_bounds_leaves_as_a_whole() -> None:
    """At sequence level the mean log-weight decides; the other sequence keeps its weight."""
    batch = packed([[1, 1], [1, 1]])
    config = BehaviourConfig(mode=BehaviourWeight.MASK, level=RatioLevel.SEQUENCE, upper=2.0)

    weighted = behaviour_weight(torch.tensor([2.0, 0.0, 1.0, 0.0]), torch.zeros(4), batch, config)

    assert [0.0, 0.0, math.exp(0.5), math.exp(0.5)] == pytest.approx(weighted.weight.tolist())
    assert weighted.touched.tolist() == [True, True, False, False]


def test_a_behaviour_log_prob_that_is_not_finite_weighs_one() -> None:
    """A sampler's -inf neither drops the token nor explodes."""
    batch = packed([[1, 1]])
    config = BehaviourConfig(mode=BehaviourWeight.MASK, upper=2.0)

    weighted = behaviour_weight(torch.zeros(2), torch.tensor([-math.inf, 0.0]), batch, config)

    assert weighted.weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("log_ratio", "estimator", "expected"),
    [
        (0.0, KLEstimator.K3, 0.0),
        (20.0, KLEstimator.K1, 10.0),
        (2.0, KLEstimator.K2, 2.0),
        (-math.inf, KLEstimator.K3, 10.0),
    ],
)
def test_published_values_of_the_kl_estimators(log_ratio: float, estimator: KLEstimator, expected: float) -> None:
    """k3(0) = 0, k1(20) = 10 (clamped), k2(2) = 2, and an impossible token is bounded."""
    assert expected == float(kl_estimate(torch.tensor(log_ratio), torch.tensor(0.0), estimator))


@pytest.mark.parametrize("nats", [-40.0, -15.0, -3.0, 3.0, 15.0, 40.0])
def test_the_pull_back_to_the_reference_does_not_end_far_from_it(nats: float) -> None:
    """Unlike the penalty in the reward, the term in the loss is not clamped: its gradient is that of its formula."""
    for estimator, slope in ((KLEstimator.K2, nats), (KLEstimator.K3, 1 - math.exp(min(-nats, 20.0)))):
        logprobs = torch.tensor([nats], dtype=torch.float64, requires_grad=True)
        kl_loss(logprobs, torch.zeros(1, dtype=torch.float64), estimator).backward()
        assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(slope)


def test_an_extreme_ratio_bounded_by_dual_clip_has_a_finite_gradient() -> None:
    """A log-ratio of 200 on a bad token costs dual_clip and pushes nowhere, instead of making NaN."""
    batch = packed([[1]], advantages=[-1.0], proximal_logprobs=[-200.0])
    objective = PPOObjective(PPOConfig(dual_clip=3.0))
    logprobs = torch.zeros(1, requires_grad=True)

    loss, _ = objective.loss({"logprobs": logprobs}, batch, objective.normalizer(batch))
    loss.backward()

    assert (float(loss.detach()), logprobs.grad.tolist()) == (3.0, [0.0])


def test_a_nan_from_the_model_stays_loud() -> None:
    """The loss is NaN, so the engine skips the step and reports it, instead of a silent zero."""
    batch = packed([[1, 1]], advantages=[1.0, 1.0], proximal_logprobs=[0.0, 0.0])

    loss, _ = _ppo(batch, [math.nan, 0.0])

    assert math.isnan(loss)


@pytest.mark.parametrize("level", list(RatioLevel))
@pytest.mark.parametrize("mode", list(BehaviourWeight))
def test_the_gradient_is_that_of_the_loss(level: RatioLevel, mode: BehaviourWeight) -> None:
    """Finite differences agree; the behaviour weight takes no part in it."""
    batch = with_columns(packed([[0, 1, 1, 0, 1], [0, 1, 1]]), seed=3)
    behaviour = BehaviourConfig(mode=mode, level=level, upper=1.5)
    objective = PPOObjective(PPOConfig(ratio_level=level, dual_clip=1.5, entropy_coefficient=0.1, behaviour=behaviour))
    logprobs = (batch.tokens["logprobs"].double() + torch.linspace(-0.5, 0.4, 8)).requires_grad_()
    entropy = torch.linspace(0.1, 1.0, 8, dtype=torch.float64).requires_grad_()

    def loss(logprobs: Tensor, entropy: Tensor) -> Tensor:
        return objective.loss({"logprobs": logprobs, "entropy": entropy}, batch, objective.normalizer(batch))[0]

    assert torch.autograd.gradcheck(loss, (logprobs, entropy))


def test_the_proximal_policy_has_no_gradient() -> None:
    """Loglinear interpolates with the policy itself; only the ratio's numerator learns."""
    batch = packed([[1]], advantages=[1.0], proximal_alpha=[0.5])
    objective = PPOObjective(
        PPOConfig(proximal=Proximal.LOGLINEAR, behaviour=BehaviourConfig(mode=BehaviourWeight.CLAMP))
    )
    logprobs = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)

    objective.loss({"logprobs": logprobs}, batch, objective.normalizer(batch))[0].backward()

    assert [-math.exp(0.05) * math.exp(0.05)] == pytest.approx(logprobs.grad.tolist())


def test_it_asks_only_for_what_it_uses() -> None:
    """The entropy is computed unless neither a bonus nor the metrics want it."""
    plain, bonus = PPOConfig(report_entropy=False), PPOConfig(entropy_coefficient=0.1, report_entropy=False)
    loglinear = evolve(plain, proximal=Proximal.LOGLINEAR)

    assert Output.ENTROPY in PPOObjective(PPOConfig()).outputs

    assert frozenset({Output.LOGPROBS}) == PPOObjective(plain).outputs
    assert frozenset({Output.LOGPROBS, Output.ENTROPY}) == PPOObjective(bonus).outputs
    assert frozenset({"advantages", "logprobs", "proximal_logprobs"}) == PPOObjective(plain).columns
    assert frozenset({"advantages", "logprobs", "proximal_alpha"}) == PPOObjective(loglinear).columns
    assert isinstance(PPOObjective(plain), Objective)


def test_metrics_say_how_far_the_policy_went() -> None:
    """Clip shares by side, ratios and log-prob gaps with extremes, effective sample size, by hand."""
    policy = [9.0, math.log(1.5), math.log(0.5), math.log(0.5), 0.0]
    batch = packed([[0, 1, 1, 1, 1]], advantages=[0.0, 1.0, -1.0, 1.0, 1.0], proximal_logprobs=[0.0] * 5)

    _, sums = _ppo(batch, policy)
    found = means(sums)

    assert (found["clip_fraction_high"], found["clip_fraction_low"], found["clip_fraction"]) == (0.25, 0.25, 0.5)
    assert (found["importance_weight_min"], found["importance_weight_max"]) == pytest.approx((0.5, 1.5))
    assert (found["policy_ratio_min"], found["policy_ratio_max"]) == pytest.approx((0.5, 1.5))
    assert (found["logprob_gap_min"], found["logprob_gap_max"]) == pytest.approx((math.log(0.5), math.log(1.5)))
    assert found["logprob_gap_abs"] == pytest.approx((2 * math.log(2) + math.log(1.5)) / 4)
    assert found["policy_ratio"] ** 2 / found["policy_ratio_square"] == pytest.approx(3.5**2 / (4 * 3.75))
    assert "engine_gap" not in found, "no token is known to be fresh"


@pytest.mark.parametrize("proximal", [Proximal.BEHAVIOUR, Proximal.RECOMPUTE])
def test_the_gap_between_engine_and_trainer_is_of_fresh_tokens_only(proximal: Proximal) -> None:
    """A stale token's difference is staleness; with log-probs of the step's beginning, those are compared."""
    batch = packed(
        [[0, 1, 1, 1]],
        advantages=[0.0] * 4,
        proximal_logprobs=[0.0, -0.5, 0.25, 7.0],
        fresh=[False, True, True, False],
    )

    found = means(_ppo(batch, [0.0, 0.1, -0.3, 9.0], proximal=proximal)[1])

    mean, most = (0.375, 0.5) if proximal is Proximal.RECOMPUTE else (0.2, 0.3)
    assert (found["engine_gap"], found["engine_gap_max"]) == pytest.approx((mean, most))


def test_without_a_fresh_token_there_is_no_gap_to_report() -> None:
    """Absent, not zero."""
    batch = packed([[0, 1]], advantages=[0.0] * 2, proximal_logprobs=[0.0] * 2, fresh=[False, False])

    assert not {"engine_gap", "engine_gap_max"} & means(_ppo(batch, [0.0, 1.0])[1]).keys()


def test_an_extreme_that_an_engine_added_up_is_left_out() -> None:
    """Absent, not wrong; one micro-batch adds nothing up."""
    one, two = Sum(value=2.0, weight=1.0), Sum(value=5.0, weight=2.0)

    assert means({"a_max": one, "b_max": two, "b": two}) == {"a_max": 2.0, "b": 2.5}
