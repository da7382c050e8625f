"""What a training backend implements, and what an algorithm implements for it.

An engine computes columns and steps an objective; no algorithm is repeated per engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import Factory, field, frozen

from areal_core.contract.weights import Receipt, WeightSink

if TYPE_CHECKING:
    from torch import Tensor

    from areal_core.contract.batch import Batch


class Output(StrEnum):
    """A per-token column an engine can compute, float32 [T], aligned to its own token.

    Log-probs and entropy are computed where the batch's `loss_mask` is True and are 0 elsewhere:
    the logits of a prompt cost the most and train nothing. To score other tokens, set the mask.
    """

    LOGPROBS = "logprobs"
    """log p(token t | tokens < t) at the spec's temperature; 0 off the mask and for the first token of a sequence."""
    ENTROPY = "entropy"
    """Entropy in nats of the distribution token t was drawn from; 0 off the mask and for the first token."""
    CANDIDATE_LOGPROBS = "candidate_logprobs"
    """float32 [T, K]: log-probs of the K tokens that the column `candidates` names; 0 like `LOGPROBS`. Claim
    `candidates`, since 1.4."""
    VALUES = "values"
    """The critic's estimate of the return from token t on, read before token t is known."""


class Head(StrEnum):
    """What sits on top of the transformer."""

    CAUSAL_LM = "causal_lm"
    VALUE = "value"


SCHEDULES = ("constant", "linear", "cosine")


@frozen(kw_only=True)
class OptimizerSpec:
    """AdamW and its learning-rate schedule, counted in optimizer steps.

    Step k (from 0) uses `lr * (k + 1) / warmup_steps` while k < `warmup_steps`. Then `schedule`, constant |
    linear | cosine, leads from `lr` at step `warmup_steps` down to `min_lr_ratio * lr` at step `total_steps` and
    after. A skipped step does not count. `max_grad_norm` 0 turns clipping off.
    """

    lr: float = field(default=1e-6, metadata={"exclusiveMinimum": 0})
    """Learning rate: the highest of the schedule."""
    betas: tuple[float, float] = field(default=(0.9, 0.999), converter=tuple)
    """AdamW's decay of the mean of gradients and of their squares."""
    eps: float = field(default=1e-8, metadata={"minimum": 0})
    """AdamW's epsilon."""
    weight_decay: float = field(default=0.01, metadata={"minimum": 0})
    """Decoupled, times the learning rate; 0 turns it off."""
    max_grad_norm: float = field(default=1.0, metadata={"minimum": 0})
    """Norm that larger gradients are clipped to; 0 turns clipping off."""
    schedule: str = field(default="constant", metadata={"enum": SCHEDULES})
    """The learning rate after the warmup: constant, linear or cosine."""
    warmup_steps: int = field(default=0, metadata={"minimum": 0})
    """Optimizer steps in which the learning rate grows from 0."""
    total_steps: int = field(default=0, metadata={"minimum": 0})
    """The optimizer step at which `linear` and `cosine` arrive."""
    min_lr_ratio: float = field(default=0.0, metadata={"minimum": 0})
    """Where they arrive, as a share of `lr`."""


@frozen(kw_only=True)
class LoraSpec:
    """A low-rank adapter to train in place of the model (arXiv:2106.09685). Claim `lora`, since 1.1.

    Every linear layer whose name ends with one of `targets` computes `W x + (alpha / rank) B A x`; A is random,
    B starts at zero, and only A and B are trained. `send_weights` and `save_weights` give the merged weights
    `W + (alpha / rank) B A` under the model's own names, so that any inference engine serves them. With the claim
    `weights.adapter` on both sides A and B travel alone, since 1.3: `TrainSpec.send_adapter`, `InferenceSpec.lora`.

    Example: LoraSpec(rank=8, alpha=16.0, targets=("q_proj", "v_proj"))
    """

    rank: int = field(default=0, metadata={"minimum": 0})
    """Columns of B and rows of A. No engine is given 0: in a yaml it takes that of `path`."""
    alpha: float = field(default=0.0, metadata={"minimum": 0})
    """Scale of the adapter, over `rank`. 0 like `rank`."""
    targets: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Ends of the names of the linear layers that get one. None like `rank`."""
    path: str = ""
    """Folder in PEFT's format the adapter begins as; empty begins a new one. Claim `weights.adapter`, since 1.3."""


ROUTED_EXPERTS = "routed_experts"
"""Token column, int32 [T, layers, experts per token]: the experts of the pass that token t was drawn from, the one
over token t - 1, aligned like its log-prob. Recorded while sampling (claim `experts.trace` of an inference engine) and
used again in training (claim `experts.replay` of a train engine), since 1.1. A row of -1 was not recorded and is
routed freely."""

CANDIDATES = "candidates"
"""Token column, int32 [T, K]: tokens that might have been token t. In a forward pass a row of -1 asks for the K most
probable ones, and the column comes back with them in it, the most probable first. Claim `candidates`, since 1.4."""


@frozen(kw_only=True)
class TrainSpec:
    """Everything a train engine needs to build its model on one rank.

    `options` are the backend's own settings, already checked against its config class.
    `temperature` divides the logits before every log-softmax: it is the rollout's
    sampling temperature, taken from there, so that ratios compare like with like.
    `optimizer` None means a frozen role (reference model): only `forward` is called.
    """

    role: str
    model_path: str
    head: Head = field(default=Head.CAUSAL_LM, converter=Head)
    dtype: str = "float32"
    layout: Mapping[str, int] = Factory(dict)
    """Parallel degrees by letter, as in backend strings: {"d": 4, "t": 2}."""
    optimizer: OptimizerSpec | None = None
    temperature: float = 1.0
    max_tokens_per_microbatch: int = 16384
    seed: int = 1
    options: Mapping[str, Any] = Factory(dict)  # Any: the values are the backend's own types
    lora: LoraSpec | None = None
    send_adapter: bool = False
    """`send_weights` sends A and B of `lora`, and nothing else. Claim `weights.adapter`, since 1.3."""


@frozen(kw_only=True)
class RankContext:
    """Where one rank runs. `init_method` is a rendezvous every rank of the role can reach.

    Example: RankContext(rank=1, world_size=2, local_rank=1, device="cpu", init_method="tcp://127.0.0.1:4567")
    """

    rank: int
    world_size: int
    local_rank: int
    device: str
    """A kind of device, for example `cuda`; the engine picks the device of that kind numbered `local_rank`."""
    init_method: str
    timeout_s: float = 300.0


@frozen(kw_only=True)
class EngineInfo:
    """What a started engine reports.

    `data_rank` of `data_size` says which shard of a batch this rank takes: the core
    splits each batch into `data_size` balanced shards. Ranks that differ only in their
    tensor, pipeline or context coordinate report the same `data_rank`.
    """

    engine: str
    engine_version: str
    device: str
    """As torch calls it, for example `cuda:0`."""
    num_parameters: int
    context_length: int
    data_rank: int = 0
    data_size: int = 1
    details: Mapping[str, str] = Factory(dict)


@frozen(kw_only=True)
class Sum:
    """A metric that can be added over micro-batches and ranks: shown as `value / weight`."""

    value: float
    weight: float


@frozen(kw_only=True)
class TrainReport:
    """What one optimizer step did, equal on every rank (already reduced).

    `stepped` is False when the gradient was not finite: the step was skipped, the
    weights and the optimizer are unchanged, and `grad_norm` tells the value seen.
    """

    loss: float
    grad_norm: float
    lr: float
    stepped: bool
    num_microbatches: int
    num_tokens: int
    seconds: float
    metrics: Mapping[str, Sum] = Factory(dict)


@frozen(kw_only=True)
class ObjectiveSpec:
    """An objective as it travels: its registered name and its configuration, never code."""

    name: str
    config: Mapping[str, Any] = Factory(dict)  # Any: the values are the objective's own types


@runtime_checkable
class Objective(Protocol):
    """What an algorithm asks an engine to minimise. Built in every worker from an ObjectiveSpec.

    The loss is a sum over tokens (or sequences) divided by one global normaliser, so the
    gradient does not depend on micro-batches, packing order or the number of ranks (law 6).
    """

    @property
    def outputs(self) -> frozenset[Output]:
        """Return the columns `loss` needs from the model."""

    @property
    def columns(self) -> frozenset[str]:
        """Return the token columns the batch must already hold, for example {"advantages"}."""

    def normalizer(self, batch: Batch) -> Tensor:
        """Return this shard's share of the normaliser, a float64 scalar (a count, not a mean).

        The engine adds it over micro-batches and data-parallel ranks before any loss.
        """

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return this micro-batch's share of the loss, and metrics.

        Args:
            columns: the outputs asked for, float32 [T] (`CANDIDATE_LOGPROBS` [T, K]), with gradient.
            batch: the micro-batch, on the engine's device, whole sequences only.
            normalizer: the global normaliser, a positive float64 scalar on the same device.

        Returns:
            A scalar with gradient, sum / normalizer; shares add up to the global loss.
        """


@runtime_checkable
class TrainEngine(Protocol):
    """One rank of a training role (actor, critic, reference model).

    The core makes each call on every rank of the role, in the same order, each rank in a
    process of its own; calls to one rank never overlap. Collectives are the engine's own.
    """

    version: int
    """The policy version of the weights held; `train_step` does not change it, the core sets it."""

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Join the process group and build model and optimizer. Called once, first.

        Raises:
            ModelError: the folder is missing, or holds no model this engine can train.
            LayoutError: the layout does not fit the model or the number of ranks.
            CapabilityError: the spec asks for what the engine does not claim.
        """

    def train_step(self, batch: Batch, objective: Objective) -> TrainReport:
        """Make one optimizer step on this rank's shard. Once per minibatch.

        The engine cuts micro-batches, adds the normaliser over all ranks, runs forward
        and backward, clips the gradient by its global norm, steps optimizer and schedule.
        A shard may be empty; the rank still takes part.

        Raises:
            BatchError: a column is missing, or a sequence exceeds the micro-batch budget;
                raised on every rank, before any collective that others could wait in.
        """

    def forward(self, batch: Batch, outputs: frozenset[Output]) -> Batch:
        """Return this rank's shard with one more token column per output, no gradient.

        The weights are those of `version`; dropout is off. A column `routed_experts` decides the routing.

        Raises:
            CapabilityError: the batch holds `routed_experts` and the engine does not claim `experts.replay`.
        """

    def send_weights(self, sink: WeightSink | None, version: int) -> Receipt | None:
        """Send every parameter under its Hugging Face name and full shape. Collective.

        With `TrainSpec.send_adapter`: every A and B under the name PEFT's files have for it,
        `base_model.model.LAYER.lora_A.weight` [rank, in] and `base_model.model.LAYER.lora_B.weight` [out, rank].

        Rank 0 gets the sink and returns the receipt of `sink.finish()`, whose fingerprints
        the engine has compared with the tensors it holds; the others pass None and return
        None. Gathers one bucket at a time.

        Raises:
            FingerprintMismatch: the sink holds other bytes than the engine sent.
            CoverageError: the sink took other tensors than were announced.
            StorageError: no room for them.
        """

    def save_weights(self, path: Path) -> None:
        """Write a Hugging Face folder (safetensors, config, tokenizer) at `path`. Collective.

        The folder exists only when it is complete: write beside it, then rename.

        Raises:
            StorageError: nothing is left behind.
        """

    def save_state(self, path: Path) -> None:
        """Write all that an exact resume needs: weights, optimizer, schedule, random state. Collective."""

    def load_state(self, path: Path) -> None:
        """Return to a saved state exactly: the next step gives the same bits. Collective.

        Raises:
            CheckpointError: missing, incomplete, or of another model or layout.
        """

    def close(self) -> None:
        """Leave the process group and free the device. Idempotent."""
