"""Who this rank works with along each axis: Megatron's groups.

Knows: how a layout is said to Megatron's `parallel_state`, which is one per process.
Does not know: models.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch.distributed as dist
from attrs import frozen

from areal_core.contract.errors import LayoutError
from areal_core.contract.train import RankContext
from areal_megatron.config import MegatronConfig
from areal_megatron.library import parallel_state
from areal_torch.layout import ORDER, coordinates, divisors
from areal_torch.newcomers import no_newcomers


@frozen(kw_only=True, eq=False)
class Ranks:
    """One rank's place, and its groups. `data` are the ranks that differ in d and c: they hold the same weights.

    Experts have an order of their own: different ones lie on `expert` ranks, parts of each on `expert_tensor` ranks,
    the same parts of the same ones on `expert_data` ranks.
    `embedding` are the first and the last stage of a pipeline, None between.
    """

    place: Mapping[str, int]
    degrees: Mapping[str, int]
    tensor: dist.ProcessGroup
    context: dist.ProcessGroup
    data: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    embedding: dist.ProcessGroup | None
    expert: dist.ProcessGroup
    expert_tensor: dist.ProcessGroup
    expert_data: dist.ProcessGroup

    def cutting(self, *, of_expert: bool) -> dist.ProcessGroup:
        """Return the ranks that share what is cut: of an expert, or of everything else."""
        return self.expert_tensor if of_expert else self.tensor


@no_newcomers()
def arrange(layout: Mapping[str, int], rank: RankContext, config: MegatronConfig) -> Ranks:
    """Make the groups of a layout that was checked. Collective."""
    degrees = {letter: layout.get(letter, 1) for letter in (*ORDER, "e")}
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=degrees["t"],
        pipeline_model_parallel_size=degrees["p"],
        virtual_pipeline_model_parallel_size=config.virtual if config.virtual > 1 else None,
        context_parallel_size=degrees["c"],
        expert_model_parallel_size=degrees["e"],
        expert_tensor_parallel_size=config.expert_tensor,
        distributed_timeout_minutes=rank.timeout_s / 60,
        order="tp-cp-ep-dp-pp",
        create_gloo_process_groups=False,
    )
    ends = parallel_state.is_rank_in_embedding_group(ignore_virtual=True)
    return Ranks(
        place=coordinates(degrees, rank.rank),
        degrees=degrees,
        tensor=parallel_state.get_tensor_model_parallel_group(),
        context=parallel_state.get_context_parallel_group(),
        data=parallel_state.get_data_parallel_group(with_context_parallel=True),
        pipeline=parallel_state.get_pipeline_model_parallel_group(),
        embedding=parallel_state.get_embedding_group() if ends else None,
        expert=parallel_state.get_expert_model_parallel_group(),
        expert_tensor=parallel_state.get_expert_tensor_parallel_group(),
        expert_data=parallel_state.get_expert_data_parallel_group(),
    )


def forget() -> None:
    """Let Megatron forget the groups, so that their sockets close and another engine can make its own. Idempotent."""
    parallel_state.destroy_model_parallel()
    for name, value in list(vars(parallel_state).items()):  # the call above leaves some, by oversight
        if isinstance(value, dist.ProcessGroup):
            setattr(parallel_state, name, None)


def check_expert_degree(layout: Mapping[str, int], config: MegatronConfig) -> None:
    """Refuse degrees of experts that the ranks of one stage cannot hold.

    Raises:
        LayoutError: together they do not divide the number of tensor, context and data ranks.
    """
    degree, shared = layout.get("e", 1), config.expert_tensor
    holders = prod(layout.get(letter, 1) for letter in "dtc")
    if holders % (degree * shared):
        asked = f"e{degree} with expert_tensor: {shared}" if shared > 1 else f"e{degree}"
        chosen = "e times expert_tensor" if shared > 1 else "e"
        raise LayoutError(
            f"{asked} does not divide {holders} ranks of a stage",
            why="expert ranks are taken from those of d, t and c",
            fix=f"choose {chosen} from {divisors(holders)}",
        )
