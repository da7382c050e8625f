"""Budgets of precision: how far numbers may be from float64, and by what a narrowed one is told from a float32 one.

A number that float32 computed has 24 random bits, so that one in 8,192 fits float16 and one in 65,536 bfloat16.
Numbers that were narrowed on their way fit all, whatever dtype they are kept in by then: their grain tells.

Knows: grains, and the budget of each kind of number.
Does not know: engines, or where numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from areal_conformance.outcome import Inconclusive, expect

NARROW: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
GRAIN = 0.2
"""Share of numbers that may fit a narrow dtype. Chance gives a part in thousands; rounding gives all."""
FEWEST = 40
"""Numbers that must be looked at for a grain to tell."""
PER_STEP = 1e-6
"""Budget of master weights: relative error each step may add. float32 rounds by 6e-8, bfloat16 by 4e-3."""
MOMENTS = 1e-4
"""Budget of moments: relative error of the way that a weight goes by them alone. float16 errs by 1e-3 at least."""
GROWTH = 4.0
"""How many times as large the error late in a long sequence may be as early in it."""


def fine(what: str, numbers: Tensor) -> None:
    """Expect numbers that float32 computed not to fit a narrower dtype.

    Raises:
        Inconclusive: there are too few that are not 0.
    """
    found = numbers.detach().cpu().reshape(-1)
    expect(found.dtype is torch.float32, f"{what}: the dtype is {found.dtype}, expected torch.float32")
    found = found[found != 0]
    if len(found) < FEWEST:
        raise Inconclusive(f"{what}: only {len(found)} numbers to look at")
    for name, dtype in NARROW.items():
        share = float((found == found.to(dtype).float()).float().mean())
        expect(share <= GRAIN, f"{what}: {share:.1%} fit {name}, where float32 leaves a part in thousands: narrowed")


def relative(got: Tensor, wanted: Tensor) -> float:
    """Return the largest error as a part of what is wanted, of numbers that are not 0."""
    some = wanted != 0
    return float(((got.double() - wanted)[some] / wanted[some]).abs().max())
