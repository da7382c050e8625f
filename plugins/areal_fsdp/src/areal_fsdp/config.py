"""Options of the FSDP engine, as they stand under `options:` of a training role."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class FSDPConfig:
    """How the model is sharded. The defaults suit most models."""

    wrap: str = field(default="auto", validator=validators.in_(("auto", "layer", "root")))
    """`layer` gathers one decoder layer at a time, `root` the whole model at once. `auto` takes `root`
    for models under 64 MiB, where the hooks of many units would cost more than they save."""
    reshard_after_forward: bool = True
    """Drop gathered layers after the forward pass and gather them again for the backward pass."""
    reduce_every_microbatch: bool = True
    """Keep only this rank's shard of the gradient between micro-batches. False communicates once
    per step and holds the whole gradient meanwhile."""
    activation_checkpointing: bool = False
    """Keep only each layer's input and compute the rest again in the backward pass."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer in host memory; the optimizer steps there."""
    replicas: int = field(default=1, validator=validators.ge(1))
    """Cut the model over the data ranks of one replica only, and keep so many replicas: fewer bytes between
    machines for more memory on each. Divides `d`."""
    compile: bool = False
    """Compile each decoder layer but its attention, at its first batch; worth the minutes on GPUs. Not with `t`."""
    compile_backend: str = "inductor"
    """What torch.compile hands the layers to. `aot_eager` needs no compiler and is no faster: for tests."""
