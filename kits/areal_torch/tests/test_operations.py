"""Operations of a step are counted by name, those of the backward pass and of checkpoints too."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from areal_torch.testing.operations import Operations


def test_what_is_computed_again_is_counted_again() -> None:
    """A checkpoint computes twice what the gradient of a later product needs; each gradient is computed once."""
    x, weight = torch.ones(2, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ weight) @ weight

    with Operations() as plain:
        layer(x).sum().backward()  # type: ignore[no-untyped-call]
    with Operations() as again:
        checkpoint(layer, x, use_reentrant=False).sum().backward()

    assert [plain.made[name] for name in ("silu", "silu_backward", "mm")] == [1, 1, 6]
    assert [again.made[name] for name in ("silu", "silu_backward", "mm")] == [2, 1, 7]
