"""AdamW, its schedule, clipping, and what is done with a gradient that is not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from areal_core.contract.errors import PlanError, WrongType
from areal_core.contract.train import OptimizerSpec
from areal_torch.optimizer import Optimizer, learning_rate, squared_norm


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 4), "b": (5,)}
    return {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}


def give_gradients(held: dict[str, torch.Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for tensor in held.values():
        tensor.grad = torch.randn(tensor.shape, generator=generator)


def test_steps_equal_torch_adamw_with_clipping() -> None:
    """Four steps: the same weights as torch.optim.AdamW after clip_grad_norm_, and the same norm."""
    ours, plain = parameters(), parameters()
    optimizer = Optimizer(ours, OptimizerSpec(lr=0.05, betas=(0.8, 0.9), weight_decay=0.1, max_grad_norm=0.5))
    reference = torch.optim.AdamW(list(plain.values()), lr=0.05, betas=(0.8, 0.9), weight_decay=0.1)
    for step in range(4):
        give_gradients(ours, step)
        give_gradients(plain, step)
        norm = math.sqrt(optimizer.squared_norm())
        expected = torch.nn.utils.clip_grad_norm_(list(plain.values()), 0.5)

        assert norm == pytest.approx(float(expected), rel=1e-6)
        assert optimizer.step(norm)
        reference.step()

    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, plain[name], rtol=1e-5, atol=1e-6)
        assert tensor.grad is None


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-20, 1.0, 1e20, 1e37])
def test_a_norm_is_finite_and_not_zero_where_the_gradient_is(scale: float) -> None:
    """Also where the squares of its numbers are no float32."""
    tensors = [torch.ones(4, 5) * scale, torch.zeros(3), torch.tensor([1e-45, scale])]
    wanted = sum(float(tensor.double().square().sum()) for tensor in tensors)

    assert squared_norm(tensors) == pytest.approx(wanted, rel=1e-5)


def test_one_large_number_decides_the_norm() -> None:
    """Whatever stands beside it; an infinite one or none at all is told as it is."""
    many = [torch.ones(100), torch.tensor([3e38])]

    assert squared_norm(many) == pytest.approx(9e76, rel=1e-5)
    assert squared_norm([*many, torch.tensor([math.inf, 0.0])]) == math.inf
    assert math.isnan(squared_norm([*many, torch.tensor([math.nan, 0.0])]))
    assert (squared_norm([]), squared_norm([torch.zeros(2), torch.zeros(3)])) == (0.0, 0.0)


def test_a_large_gradient_is_clipped_not_skipped() -> None:
    """What is left of it has the direction it had and the norm it may have."""
    held = {"a": torch.zeros(2, requires_grad=True)}
    optimizer = Optimizer(held, OptimizerSpec(max_grad_norm=1.0, betas=(0.0, 0.9)))
    held["a"].grad = torch.tensor([3e37, -4e37])

    assert optimizer.step(math.sqrt(optimizer.squared_norm()))

    torch.testing.assert_close(optimizer.moments["exp_avg"]["a"], torch.tensor([0.6, -0.8]))


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(norm: float) -> None:
    """Neither weights nor moments nor schedule move, and the gradient is dropped."""
    held = parameters()
    optimizer = Optimizer(held, OptimizerSpec(lr=0.05, warmup_steps=10))
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    give_gradients(held, 0)

    stepped = optimizer.step(norm)

    assert not stepped
    assert optimizer.steps == 0
    for name, tensor in held.items():
        assert torch.equal(before[name], tensor)
        assert tensor.grad is None
        assert not optimizer.moments["exp_avg"][name].any()


def test_clipping_can_be_turned_off() -> None:
    """max_grad_norm 0 takes the gradient as it is; with SGD-like moments that shows in exp_avg."""
    held = parameters()
    optimizer = Optimizer(held, OptimizerSpec(max_grad_norm=0.0, betas=(0.0, 0.9)))
    give_gradients(held, 0)
    gradient = held["a"].grad.clone()

    optimizer.step(math.sqrt(optimizer.squared_norm()))

    torch.testing.assert_close(optimizer.moments["exp_avg"]["a"], gradient)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", [0.5, 1.0, 1.0, 0.2 + 0.4 * (1 + math.cos(math.pi / 4)), 0.6, 0.3171572875, 0.2]),
    ],
)
def test_learning_rate_follows_the_schedule(schedule: str, expected: list[float]) -> None:
    """Warm-up ends at lr with its last step; the end value is reached at total_steps and kept."""
    spec = OptimizerSpec(lr=1.0, schedule=schedule, warmup_steps=2, total_steps=6, min_lr_ratio=0.2)

    rates = [learning_rate(spec, done) for done in range(7)]

    assert rates == pytest.approx(expected)
    assert learning_rate(spec, 99) == pytest.approx(expected[-1])


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"schedule": "sine"}, WrongType, "constant, linear, cosine"),
        ({"schedule": "linear", "warmup_steps": 3, "total_steps": 3}, PlanError, "total_steps"),
    ],
)
def test_schedules_that_cannot_be_followed_are_refused(options: dict[str, Any], kind: type, says: str) -> None:
    """The error names the allowed values, or the key to set."""
    with pytest.raises(kind, match=says):
        Optimizer(parameters(), OptimizerSpec(**options))
