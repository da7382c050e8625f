"""Options of the Megatron engine, as they stand under `options:` of a training role."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class MegatronConfig:
    """How the model is cut and computed. The defaults suit most models."""

    virtual: int = field(default=1, validator=validators.ge(1))
    """With p: how many stages each pipeline rank has. Several take turns (interleaved 1F1B), and ranks idle less."""
    expert_tensor: int = field(default=1, validator=validators.ge(1))
    """Ranks that share the columns of every expert, whatever t is. They too are taken from d, t and c: with e2 and 2
    here, four ranks hold all experts between them."""
    distributed_optimizer: bool = False
    """Let the ranks that hold the same weights, those of d and c, each keep masters and moments of a share of them."""
    activation_checkpointing: str = field(default="none", validator=validators.in_(("none", "selective", "full")))
    """`full` keeps each layer's input and computes the rest again in the backward pass; `selective` computes
    attention again and keeps all else."""
