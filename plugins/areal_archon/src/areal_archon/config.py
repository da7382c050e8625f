"""Options of the Archon engine, as they stand under `options:` of a training role."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class ArchonConfig:
    """How the model is cut and computed. The defaults suit most models."""

    wrap: str = field(default="auto", validator=validators.in_(("auto", "layer", "root")))
    """`layer` gathers one decoder layer at a time, `root` a whole stage at once. `auto` takes `root`
    for models under 64 MiB, where the hooks of many units would cost more than they save."""
    reshard_after_forward: str = field(default="auto", validator=validators.in_(("auto", "always", "never")))
    """Drop gathered layers after the forward pass and gather them again for the backward pass. `auto` does,
    but not in a pipeline, where other micro-batches need them soon."""
    reduce_every_microbatch: bool = True
    """Keep only this rank's shard of the gradient between micro-batches. False communicates once
    per step and holds the whole gradient meanwhile; a pipeline always does that."""
    sequence_parallel: bool = True
    """With t: let each tensor rank keep a run of the tokens between attention and feed-forward layers, which
    takes less memory for norms and residuals and as much communication."""
    activation_checkpointing: str = field(default="none", validator=validators.in_(("none", "selective", "full")))
    """`full` keeps each layer's input and computes the rest again in the backward pass; `selective` also keeps
    the results of matrix products and attention."""
    compile: bool = False
    """Compile each layer, attention itself left out. Costs a minute at the first step."""
    compile_backend: str = "inductor"
    """What torch.compile compiles with."""
    fp8: str = field(default="none", validator=validators.in_(("none", "tensorwise", "rowwise")))
    """Multiply the matrices of every layer in 8-bit floats, with one scale for a whole operand (`tensorwise`), or
    for each of its rows (`rowwise`): closer, and slower."""
    fp8_emulate: bool = False
    """Compute in the higher precision what 8-bit products would give, where the device has none. Slow."""
    pipeline_schedule: str = field(
        default="1F1B", validator=validators.in_(("1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"))
    )
    """With p: the order in which stages run micro-batches."""
    stages_per_rank: int = field(default=1, validator=validators.ge(1))
    """With p: stages on each pipeline rank. 1F1B has one, ZBVZeroBubble two, the others any number."""
