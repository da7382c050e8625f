"""How rewards of tokens become advantages: the protocol of the role `estimator`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from areal_core.contract.batch import Batch


class Estimator(Protocol):
    """Role `estimator`, contract 1.0: called by the controller once per step, on the whole batch.

    Example, in a file named by `imports:`:

        @estimator("centred")
        def centred(batch, rewards):
            return rewards - rewards[batch.tokens["loss_mask"]].mean()
    """

    def __call__(self, batch: Batch, rewards: Tensor, /) -> Tensor:
        """Return the advantage of every generated token, float [T]; what it returns off the loss mask is not read.

        Args:
            batch: as rollouts left it, with `values` if the run has a critic; it must not be changed.
            rewards: float64 [T], 0 off the loss mask: the trajectory's shaped reward on its last generated token,
                minus the KL penalty of each token.
        """
