"""FSDP units in the stages of a pipeline: which are refused, and what torch's schedules do to their gradients.

Knows: `fully_shard`, and what `torch.distributed.pipelining` takes for granted about it.
Does not know: meshes, what a stage computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule

from areal_archon.schedules import Schedule
from areal_core.contract.errors import LayoutError


def check_units(stage: nn.Module, schedule: Schedule) -> None:
    """Refuse a stage whose gradients would come out wrong in silence.

    Raises:
        LayoutError: a unit reshards after the forward pass in a schedule that splits the backward pass,
            or there are units in a stage that is none itself.
    """
    units = [(name, module) for name, module in stage.named_modules() if isinstance(module, FSDPModule)]
    if units and not isinstance(stage, FSDPModule):
        raise LayoutError(
            f"parts of a pipeline stage ({type(stage).__name__}) are sharded by FSDP, the stage is not",
            why="torch gathers, keeps and reduces for a stage as a whole, and would leave these parts out",
            fix="call fully_shard on the stage as well",
        )
    for name, unit in units:
        if schedule.splits_backward and _reshards(unit, is_root=not name):
            raise LayoutError(
                f"{schedule.name} cannot train a stage whose FSDP unit {name or 'of the whole stage'} reshards",
                why="the gradients of weights are computed after those of inputs, and would be added to weights "
                "that have been dropped since: they come out wrong, and nothing raises",
                fix="call fully_shard with reshard_after_forward=False, or choose 1F1B or Interleaved1F1B",
            )


@contextmanager
def apart(stages: Sequence[nn.Module]) -> Iterator[None]:
    """Begin and end with every unit in shards, and add to gradients that were there before.

    torch clears the gradients of units when it prepares a schedule. A pass without a backward pass leaves
    weights gathered.
    """
    reshard(stages)
    held = [(each, each.grad) for stage in stages for each in stage.parameters() if each.grad is not None]
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
    finally:
        reshard(stages)
        for parameter, before in held:
            parameter.grad = before if parameter.grad is None else before + parameter.grad


def reshard(stages: Sequence[nn.Module]) -> None:
    """Give up gathered weights; does nothing where there are none."""
    for stage in stages:
        for module in stage.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _reshards(unit: FSDPModule, *, is_root: bool) -> bool:
    """Return whether a unit drops its weights after the forward pass; torch has a setter for this but no getter."""
    state = unit._get_fsdp_state()
    if is_root and state._auto_reshard_after_forward:
        return False
    return any(group.post_forward_mesh_info is not None for group in state._fsdp_param_groups)
