"""Budgets of precision: the formulas they hold engines to are AdamW's, and grains tell what was narrowed."""

from __future__ import annotations

import pytest
import torch

from areal_conformance.oracles.coasting import COAST, coasting, off_course
from areal_conformance.outcome import Inconclusive, Violation
from areal_conformance.probes.precision import fine, relative


def test_weights_coast_as_torch_lets_them() -> None:
    """After one step with a gradient AdamW's own moments move a weight by the formula's multiple of the rate."""
    weight = torch.nn.Parameter(torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    adam = torch.optim.AdamW([weight], lr=COAST.lr, betas=COAST.betas, eps=COAST.eps, weight_decay=0.0)
    before = {"w": weight.detach().clone()}
    weight.grad = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    adam.step()
    first = {"w": weight.detach().clone()}

    for step in range(1, 9):
        weight.grad = torch.zeros_like(weight)
        adam.step()
        assert off_course(before, first, {"w": weight.detach()}, coasting(step)) < 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrowed_number_is_told_by_its_grain(dtype: torch.dtype) -> None:
    numbers = torch.randn(500, generator=torch.Generator().manual_seed(0))

    fine("numbers", numbers)
    with pytest.raises(Violation, match="narrowed"):
        fine("numbers", numbers.to(dtype).float())
    with pytest.raises(Violation, match=r"expected torch\.float32"):
        fine("numbers", numbers.to(dtype))
    with pytest.raises(Inconclusive, match="only 3"):
        fine("numbers", numbers[:3])


def test_errors_are_parts_of_what_is_wanted() -> None:
    assert relative(torch.tensor([1.01, 5.0, 0.0]), torch.tensor([1.0, 5.0, 0.0])) == pytest.approx(0.01, rel=1e-4)
