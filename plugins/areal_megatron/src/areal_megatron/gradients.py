"""Gradients in float32: added up over micro-batches as they come, and over ranks at the end of a step.

Knows: which ranks hold the same weights, and which see a part of the tokens only.
Does not know: losses or optimizers. Sums, never averages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from areal_megatron.names import EMBEDDING
from areal_megatron.ranks import Ranks
from areal_megatron.sharding import Held


class Gradients:
    """The gradients of what this rank holds, in one buffer for the layers and one for experts."""

    def __init__(self, held: Mapping[str, Held], ranks: Ranks) -> None:
        """Catch each as soon as it is computed; memory is taken for the time of a step."""
        self._held, self._ranks = list(held.values()), ranks
        self._dense, dense = _buffer([each for each in self._held if each.parameter.expert is None])
        self._experts, experts = _buffer([each for each in self._held if each.parameter.expert is not None])
        self._views = {**dense, **experts}
        for each in self._held:
            catch = partial(_catch, self._views[each.parameter.name])
            each.weight.register_post_accumulate_grad_hook(catch)  # type: ignore[no-untyped-call]
        # Between the cut parts of a layer each tensor rank has a run of the tokens; a value head has all of them. Norms
        # of queries and keys see all, of this rank's heads.
        self._partial = [
            self._views[each.parameter.name]
            for each in self._held
            if each.parameter.name.startswith("decoder.") and each.parameter.cut is None
        ]
        self.drop()

    def begin(self) -> None:
        """Start a step with nothing, whatever a step that failed left behind."""
        for buffer in (self._dense, self._experts):
            buffer.untyped_storage().resize_(4 * buffer.numel())
            buffer.zero_()

    def drop(self) -> None:
        """Give the memory back. Idempotent."""
        for each in self._held:
            each.master.grad = None
        for buffer in (self._dense, self._experts):
            buffer.untyped_storage().resize_(0)

    @torch.no_grad()
    def finish(self, *, tied: bool) -> None:
        """Add up over ranks and hand them to the masters. Collective.

        Args:
            tied: whether the embedding is the head too, in another stage.
        """
        ranks = self._ranks
        if ranks.tensor.size() > 1 and self._partial:
            joined = torch.cat([view.flatten() for view in self._partial])
            dist.all_reduce(joined, group=ranks.tensor)
            for view, total in zip(
                self._partial, torch.split(joined, [view.numel() for view in self._partial]), strict=True
            ):
                view.copy_(total.view(view.shape))
        if tied and ranks.embedding is not None:
            dist.all_reduce(self._views[EMBEDDING], group=ranks.embedding)
        for buffer, group in ((self._dense, ranks.data), (self._experts, ranks.expert_data)):
            if group.size() > 1 and buffer.numel():
                dist.all_reduce(buffer, group=group)
        for each in self._held:
            each.master.grad = each.own(each.whole_part(self._views[each.parameter.name])).contiguous()


def _buffer(held: Sequence[Held]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return one tensor, and each weight's part of it by the parameter's name."""
    device = held[0].weight.device if held else torch.device("cpu")
    buffer = torch.zeros(sum(each.weight.numel() for each in held), dtype=torch.float32, device=device)
    parts = torch.split(buffer, [each.weight.numel() for each in held]) if held else ()
    return buffer, {each.parameter.name: part.view(each.weight.shape) for each, part in zip(held, parts, strict=True)}


def _catch(total: Tensor, weight: nn.Parameter) -> None:
    """Add a gradient to the total and give its memory back."""
    assert weight.grad is not None
    total.add_(weight.grad)
    weight.grad = None
