"""The shape of a run's yaml. Every key a run reads is here, with its default and its meaning.

Knows: names, types, ranges of single values.
Does not know: files and overrides (`load`), or what fits with what (`plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import Factory, field, frozen, validators

from areal_core.algorithms.config import AlgorithmConfig
from areal_core.config.placement import PlacementConfig
from areal_core.contract.inference import SamplingParams
from areal_core.contract.train import LoraSpec, OptimizerSpec

Options = Mapping[str, Any]  # Any: checked against the plugin's own config class

AUTO, RL = "auto", "rl"
_DTYPE = validators.in_(("float32", "bfloat16", "float16"))


class StalenessPolicy(StrEnum):
    """What happens when an episode would be too old."""

    WAIT = "wait"
    """Never drop: the trainer waits for the straggler, so it cannot become too old."""
    DROP = "drop"
    """Drop it, count it, and issue its prompt again."""


@frozen(kw_only=True)
class ModelConfig:
    """The policy's starting point."""

    path: str = ""
    """A folder on this machine in Hugging Face format: config.json, *.safetensors, tokenizer."""
    dtype: str = field(default="float32", validator=_DTYPE)


@frozen(kw_only=True)
class DataConfig:
    """A data set by registered name, with its own options."""

    name: str = ""
    options: Options = Factory(dict)
    shuffle: bool = True


@frozen(kw_only=True)
class WorkflowConfig:
    """A workflow by registered name, with its own options."""

    name: str = "single_turn"
    options: Options = Factory(dict)


@frozen(kw_only=True)
class RewardConfig:
    """A reward function by registered name, and the pool it runs in."""

    name: str = ""
    options: Options = Factory(dict)
    timeout_s: float = field(default=15.0, validator=validators.gt(0.0))
    workers: int = field(default=1, validator=validators.ge(1))


@frozen(kw_only=True)
class RolloutConfig:
    """How episodes are made."""

    backend: str = "reference:d1"
    options: Options = Factory(dict)
    python: str | None = None
    """Another interpreter for the inference workers, for engines that pin their own torch."""
    dtype: str | None = field(default=None, validator=validators.optional(_DTYPE))
    """Of the inference weights; None takes `model.dtype`."""
    context_length: int = field(default=0, validator=validators.ge(0))
    cpus_per_replica: int = field(default=1, validator=validators.ge(1))
    placement: PlacementConfig = PlacementConfig()
    """Of each inference worker."""
    workflow: WorkflowConfig = WorkflowConfig()
    reward: RewardConfig = RewardConfig()
    prompts_per_step: int = field(default=16, validator=validators.ge(1))
    group_size: int = field(default=8, validator=validators.ge(1))
    max_staleness: int = field(default=2, validator=validators.ge(0))
    staleness_policy: StalenessPolicy = StalenessPolicy.WAIT
    max_concurrent: int = field(default=0, validator=validators.ge(0))
    """Groups in flight; 0 means all the staleness bound allows."""
    retries: int = field(default=2, validator=validators.ge(0))
    """How often a member is run again after a retryable error."""
    max_failed_share: float = field(default=0.1, validator=[validators.ge(0.0), validators.lt(1.0)])
    """Of the last 10 * prompts_per_step groups, the share that may fail for good before the run stops."""
    request_timeout_s: float = field(default=1800.0, validator=validators.gt(0.0))
    """One generation request, from asking a replica to its last token; also how long it may be held back."""
    episode_timeout_s: float = field(default=1800.0, validator=validators.gt(0.0))
    """The episodes of a group side by side, with all their turns and tries; or one of an evaluation."""
    max_replacements: int = field(default=2, validator=validators.ge(0), metadata={"was": "replace"})
    """Lost inference replicas a run may replace; 0 goes on with those that are left."""
    sampling: SamplingParams = SamplingParams()


@frozen(kw_only=True)
class RoleConfig:
    """One training role: actor, critic or reference model."""

    backend: str = "reference:d1"
    options: Options = Factory(dict)
    path: str | None = None
    """Starting weights of this role; None takes `model.path`."""
    dtype: str | None = field(default=None, validator=validators.optional(_DTYPE))
    cpus_per_rank: int = field(default=1, validator=validators.ge(1))
    placement: PlacementConfig = PlacementConfig()
    max_tokens_per_microbatch: int = field(default=16384, validator=validators.ge(1))
    optimizer: OptimizerSpec = OptimizerSpec()
    lora: LoraSpec | None = None
    """Train an adapter in place of the model, for example {rank: 16, alpha: 32, targets: [q_proj, v_proj]}."""


@frozen(kw_only=True)
class WeightSyncConfig:
    """How new weights reach the inference fleet after every step."""

    transport: str = AUTO
    """`auto` takes shared memory where everything is on one host, else what reaches across hosts."""
    options: Options = Factory(dict)
    pause: str = field(default="auto", validator=validators.in_(("auto", "none", "keep", "abort")))
    """`auto` takes the least disturbing one the engine claims: none, then keep, then abort."""
    timeout_s: float = field(default=120.0, validator=validators.gt(0.0))


@frozen(kw_only=True)
class EvaluationConfig:
    """Greedy evaluation on held-out prompts. `every_steps` 0 evaluates only before and after."""

    data: DataConfig | None = None
    every_steps: int = field(default=20, validator=validators.ge(0))
    before: bool = True
    max_prompts: int = field(default=256, validator=validators.ge(1))
    temperature: float = 0.0


@frozen(kw_only=True)
class CheckpointConfig:
    """States saved on the way; one is saved at the end, on Ctrl-C and on an error the trainers survive anyway.

    `every_steps` 0 goes by time, where saving takes a twentieth of it at most; both 0 save none. `keep` may stay.
    """

    every_steps: int = field(default=0, validator=validators.ge(0))
    every_s: float = field(default=600.0, validator=validators.ge(0.0))
    keep: int = field(default=2, validator=validators.ge(1))
    background: bool = False
    """Write training states during the next steps. Takes as much host memory as the states, until they are written."""


@frozen(kw_only=True)
class EpisodesConfig:
    """The store of episodes in the run folder, where a package that keeps one is installed."""

    keep: int = field(default=100_000, validator=validators.ge(0))
    """Episodes that stay at most, oldest out first. 0 keeps none: a resume generates again what was not trained on."""
    ratios: bool = False
    """Compute each token's probability by the trainer before its step, also where the algorithm does not need it: a
    forward pass a step, and `areal view` colours tokens by ratio. What is trained stays the same."""


@frozen(kw_only=True)
class SchedulerConfig:
    """Who places worker processes, and when silence counts as death."""

    backend: str = "local"
    options: Options = Factory(dict)
    start_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    step_timeout_s: float = field(default=1800.0, validator=validators.gt(0.0))
    """One call of a training role: a step, a forward pass, a checkpoint."""
    heartbeat_timeout_s: float = field(default=8.0, validator=validators.gt(0.0))
    restarts: int = field(default=2, validator=validators.ge(0))
    """How often a run that lost a training worker starts again by itself, from its last state; 0 ends it."""


@frozen(kw_only=True)
class LoggerConfig:
    """A metrics sink by registered name: tensorboard, prometheus, trackio, wandb, swanlab, or your own."""

    name: str
    options: Options = Factory(dict)


@frozen(kw_only=True)
class RunConfig:
    """One run. `areal train run.yaml a.b=c` reads it; `config.yaml` in the run folder is it, resolved."""

    name: str = "run"
    kind: str = RL
    """How is trained: `rl`, or a registered kind (`areal backends --role kind`): sft, dpo, reward_model, ..."""
    options: Options = Factory(dict)
    """Of the kind, for example {batch_size: 32, epochs: 1}; `rl` has none."""
    out: str = ""
    """The run folder; empty means `runs/<name>`."""
    seed: int = 1
    steps: int = field(default=100, validator=validators.ge(1))
    imports: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Your own files; what they register is there in every process."""
    deterministic: bool = False
    """The same bits again: engines that can are told to, workers compute with deterministic kernels, at their cost."""
    device: str = "auto"
    """A kind of device (`areal backends --role device`); `auto` takes the accelerator that is here, else the cpu."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    actor: RoleConfig = RoleConfig()
    critic: RoleConfig | None = None
    reference: RoleConfig | None = None
    algorithm: AlgorithmConfig = AlgorithmConfig()
    weight_sync: WeightSyncConfig = WeightSyncConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    episodes: EpisodesConfig = EpisodesConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    guard: Options = Factory(dict)
    """Which warnings about the steps of a run end it, for example {no_reward_signal: 20, entropy_below: 0.01}."""
    profile: Options = Factory(dict)
    """Steps whose work workers write to `profile/` of the run folder, as traces for Perfetto: {steps: [5, 6]}."""
    loggers: tuple[LoggerConfig, ...] = field(default=(), converter=tuple[LoggerConfig, ...])

    @property
    def train_roles(self) -> dict[str, RoleConfig]:
        """Return the training roles the run has, by name."""
        roles = {"actor": self.actor, "critic": self.critic, "reference": self.reference}
        return {name: role for name, role in roles.items() if role is not None}
