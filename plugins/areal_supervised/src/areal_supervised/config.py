"""Options of the kinds, as they stand under `options:` in a run's yaml.

Knows: every option, its default and its meaning.
Does not know: how a loss is computed, or how rows become tokens.
"""

from __future__ import annotations

from attrs import field, frozen, validators

from areal_tasks.datasets.encoding import FormConfig

_COUNT, _SHARE = validators.ge(0), [validators.ge(0.0), validators.lt(0.5)]


@frozen(kw_only=True)
class SupervisedConfig(FormConfig):
    """What all kinds share."""

    batch_size: int = field(default=32, validator=validators.ge(1))
    """Rows per optimizer step; the engine cuts them into micro-batches by itself."""
    epochs: int = field(default=0, validator=_COUNT)
    """How often every row is trained on; 0 leaves the length of the run to `steps`."""
    max_length: int = field(default=0, validator=_COUNT)
    """Tokens of a sequence at most; longer rows are left out and counted. 0 takes what model and micro-batch allow."""


@frozen(kw_only=True)
class SFTConfig(SupervisedConfig):
    """Options of kind `sft`."""

    normalizer: str = field(default="tokens", validator=validators.in_(("tokens", "sequences")))
    """What the loss is a mean over: learned tokens, or sequences, each by the mean over its own tokens."""


@frozen(kw_only=True)
class DPOConfig(SupervisedConfig):
    """Options of kind `dpo` (arXiv 2305.18290)."""

    beta: float = field(default=0.1, validator=validators.gt(0.0))
    """Scale of the log-ratio to the reference model: a larger one keeps the policy closer to it."""
    label_smoothing: float = field(default=0.0, validator=_SHARE)
    """Share of pairs taken to be labelled the wrong way round (conservative DPO)."""


@frozen(kw_only=True)
class IPOConfig(SupervisedConfig):
    """Options of kind `ipo` (arXiv 2310.12036), on log-ratios per token."""

    beta: float = field(default=0.1, validator=validators.gt(0.0))
    """The margin between the log-ratios is regressed on 1 / (2 beta)."""


@frozen(kw_only=True)
class RewardModelConfig(SupervisedConfig):
    """Options of kind `reward_model`."""

    center_coefficient: float = field(default=0.0, validator=validators.ge(0.0))
    """Weight of (chosen + rejected)^2, which keeps rewards around 0 (arXiv 2312.09244)."""
