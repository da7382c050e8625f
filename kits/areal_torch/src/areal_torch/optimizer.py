"""AdamW with a learning-rate schedule, over whatever part of each parameter this rank holds.

Knows: local tensors, their gradients, the schedule, the exact state.
Does not know: how a gradient came about, or the norm over other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from areal_core.contract.errors import PlanError, WrongType
from areal_core.contract.train import OptimizerSpec
from areal_torch.pieces import Box, box_of

SCHEDULES = ("constant", "linear", "cosine")
_SMALL, _LARGE = 1e-15, 1e18
"""Between these a norm is what float32 makes of squares: no square that counts overflows or vanishes."""
_MOST = 126
"""Exponent of a power of two that is an ordinary float32, and one divided by it too."""


class Optimizer:
    """AdamW is elementwise, so each rank steps its local shards as plain tensors: exact, and no wrapper in the way."""

    def __init__(
        self, parameters: Mapping[str, Tensor], spec: OptimizerSpec, *, box: Callable[[Tensor], Box] = box_of
    ) -> None:
        """Build the state, all zeros, beside each parameter: `moments`, by kind and parameter name.

        Args:
            box: tells of a parameter whether this rank answers for its part.

        Raises:
            WrongType: an unknown schedule.
            PlanError: a schedule that ends before it begins.
        """
        check_spec(spec)
        self.spec = spec
        self.steps = 0
        self.parameters = dict(parameters)
        with torch.no_grad():
            held = {name: local(parameter) for name, parameter in self.parameters.items()}
        self.held = {name: tensor for name, tensor in held.items() if tensor.numel()}
        self._answered = [name for name in self.held if box(self.parameters[name]).mine]
        fused = all(tensor.device.type in ("cpu", "cuda") for tensor in self.held.values()) or None
        self.adam = torch.optim.AdamW(
            list(self.held.values()) or [torch.zeros(1)],
            lr=spec.lr,
            betas=(spec.betas[0], spec.betas[1]),
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=fused,
        )
        self.moments: dict[str, dict[str, Tensor]] = {
            kind: {name: torch.zeros_like(tensor) for name, tensor in held.items()}
            for kind in ("exp_avg", "exp_avg_sq")
        }
        for name, tensor in self.held.items():
            moments = {kind: tensors[name] for kind, tensors in self.moments.items()}
            self.adam.state[tensor] = {"step": torch.zeros((), device=tensor.device), **moments}

    @property
    def lr(self) -> float:
        """Return the learning rate the next step uses."""
        return learning_rate(self.spec, self.steps)

    @property
    def tensors(self) -> list[Tensor]:
        """Return every moment."""
        return [tensor for tensors in self.moments.values() for tensor in tensors.values()]

    def squared_norm(self) -> float:
        """Return the squared norm of the part of the gradient that this rank answers for: ranks add up to the whole."""
        return squared_norm(self.gradients(self._answered))

    @torch.no_grad()
    def step(self, norm: float) -> bool:
        """Clip by `norm`, the global one, and step; skip and change nothing if it is not finite.

        Returns:
            Whether the step was made. Gradients are dropped either way.
        """
        finite = math.isfinite(norm)
        if finite:
            self._assign_gradients()
            if 0.0 < self.spec.max_grad_norm < norm:
                torch._foreach_mul_(self.gradients(self.held), self.spec.max_grad_norm / norm)
            for group in self.adam.param_groups:
                group["lr"] = self.lr
            self.adam.step()
            self.steps += 1
        self.drop_gradients()
        return finite

    def drop_gradients(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None
        for tensor in self.held.values():
            if tensor.grad is not None:
                tensor.grad = None

    def restore(self, steps: int) -> None:
        """Set the step count after the moments were overwritten in place."""
        self.steps = steps
        for tensor in self.held.values():
            self.adam.state[tensor]["step"].fill_(steps)

    def _assign_gradients(self) -> None:
        for name, tensor in self.held.items():
            grad = self.parameters[name].grad
            tensor.grad = None if grad is None else local(grad)

    def gradients(self, names: Iterable[str]) -> list[Tensor]:
        grads = [self.parameters[name].grad for name in names]
        return [local(grad) for grad in grads if grad is not None]


@torch.no_grad()
def squared_norm(tensors: Sequence[Tensor]) -> float:
    """Return the sum of all squares, infinite or nan only where a number is: also where its square is no float32."""
    if not tensors:
        return 0.0
    norm = float(torch.nn.utils.get_total_norm(tensors))
    if _SMALL < norm < _LARGE:
        return norm**2
    largest = float(torch.nn.utils.get_total_norm(tensors, math.inf))
    if not 0.0 < largest < math.inf:
        return largest
    _, exponent = math.frexp(largest)
    scale = 2.0 ** max(-_MOST, min(_MOST, -exponent))
    norms = [float(torch.linalg.vector_norm(tensor * scale)) for tensor in tensors]
    return math.fsum((norm / scale) ** 2 for norm in norms)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a possibly sharded tensor that this rank holds; same memory."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def learning_rate(spec: OptimizerSpec, steps_done: int) -> float:
    """Return the learning rate of the step after `steps_done` steps.

    Warm-up rises linearly and reaches `lr` at its last step; then the schedule falls to
    `min_lr_ratio * lr` at `total_steps`.
    """
    if steps_done < spec.warmup_steps:
        return spec.lr * (steps_done + 1) / spec.warmup_steps
    if spec.schedule == "constant":
        return spec.lr
    progress = min(1.0, (steps_done - spec.warmup_steps) / (spec.total_steps - spec.warmup_steps))
    falling = 1.0 - progress if spec.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return spec.lr * (spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * falling)


def check_spec(spec: OptimizerSpec) -> None:
    """Refuse a schedule that cannot be followed."""
    if spec.schedule not in SCHEDULES:
        raise WrongType(f"unknown schedule {spec.schedule!r}", why=f"schedules are {', '.join(SCHEDULES)}")
    if spec.schedule != "constant" and spec.total_steps <= spec.warmup_steps:
        raise PlanError(
            f"schedule {spec.schedule!r} has {spec.total_steps} steps, {spec.warmup_steps} of them warm-up",
            why="it must fall from the end of the warm-up to total_steps",
            fix="set optimizer.total_steps to the number of optimizer steps of the run",
        )
