"""How checks of train engines compare: tensors and named weights, with a message that says where they differ.

Knows: tolerances of the bench.
Does not know: what is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.base import Bench
from areal_conformance.benches.train import same_bits
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import ArealError


def close(bench: Bench, what: str, got: Tensor, wanted: Tensor, *, atol: float = 0.0, rtol: float = 0.0) -> None:
    """Expect two tensors to agree; the message names the worst place."""
    expect(got.shape == wanted.shape, f"{what}: the shape is {tuple(got.shape)}, expected {tuple(wanted.shape)}")
    if not got.numel():
        return
    allowed = bench.tolerance(atol=atol, rtol=rtol)
    left, right = got.detach().cpu().double(), wanted.detach().cpu().double()
    excess = (left - right).abs() - (allowed.atol + allowed.rtol * right.abs())
    excess = torch.where(excess.isnan(), torch.inf, excess).reshape(-1)
    worst = int(excess.argmax())
    expect(
        excess[worst] <= 0.0,
        f"{what}: {int((excess > 0).sum())} of {excess.numel()} numbers differ; at {worst} expected "
        f"{float(right.reshape(-1)[worst]):.9g}, got {float(left.reshape(-1)[worst]):.9g} "
        f"(allowed {allowed.atol:g} + {allowed.rtol:g} of it)",
    )


def number(bench: Bench, what: str, got: float, wanted: float, *, atol: float = 0.0, rtol: float = 0.0) -> None:
    """Expect two numbers to agree."""
    close(
        bench,
        what,
        torch.tensor(got, dtype=torch.float64),
        torch.tensor(wanted, dtype=torch.float64),
        atol=atol,
        rtol=rtol,
    )


def weights_close(
    bench: Bench,
    what: str,
    got: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    *,
    atol: float,
    where: Mapping[str, Tensor] | None = None,
) -> None:
    """Expect the same names, and tensors that agree (only `where` it is True, if given)."""
    odd = sorted({*got} ^ {*wanted})
    expect(not odd, f"{what}: these tensors are on one side only: {', '.join(odd[:4])}")
    for name, tensor in wanted.items():
        mask = torch.ones_like(tensor, dtype=torch.bool) if where is None else where[name]
        close(bench, f"{what}: {name}", got[name].cpu()[mask], tensor[mask], atol=atol)


def same(what: str, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Expect the same names with the same bits."""
    wrong = same_bits(got, wanted)
    expect(not wrong, f"{what}: {len(wrong)} of {len(wanted)} tensors differ: {', '.join(wrong[:4])}")


def raises(kind: type[ArealError], what: str, action: Callable[[], Any]) -> ArealError:
    """Expect an error of ours of this class, and return it. Any: what the action returns is not looked at."""
    try:
        action()
    except kind as error:
        return error
    except Exception as error:
        raise Violation(f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise Violation(f"{what}: expected {kind.__name__}, nothing was raised")
