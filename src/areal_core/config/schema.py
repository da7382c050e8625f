"""The shape of a run's yaml. Every key a run reads is here, with its default and its meaning.

Knows: names, types, ranges of single values.
Does not know: files and overrides (`load`), or what fits with what (`plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from attrs import Factory, field, frozen, validators

from areal_core.algorithms.config import AlgorithmConfig
from areal_core.config.placement import PlacementConfig
from areal_core.contract.errors import PlanError
from areal_core.contract.inference import SamplingParams
from areal_core.contract.train import LoraSpec, OptimizerSpec

Options = Mapping[str, Any]  # Any: checked against the plugin's own config class

AUTO, RL = "auto", "rl"
SEPARATE, SHARED = "separate", "shared"
_DTYPE = validators.in_(("float32", "bfloat16", "float16"))


class StalenessPolicy(StrEnum):
    """What happens when an episode would be too old."""

    WAIT = "wait"
    """Never drop: the trainer waits for the straggler, so it cannot become too old."""
    DROP = "drop"
    """Drop it, count it, and issue its prompt again."""


class Admission(StrEnum):
    """When a prompt begins."""

    EAGER = "eager"
    """As early as `max_staleness` allows."""
    JUST_IN_TIME = "just_in_time"
    """As late as its episodes are still ready when they are wanted, judged by the batches before."""


@frozen(kw_only=True)
class ModelConfig:
    """The policy's starting point."""

    path: str = ""
    """A folder in Hugging Face format (config.json, *.safetensors, tokenizer), or a name on the hub: Qwen/Qwen3-0.6B,
    with @ and a branch, tag or commit behind it if you like."""
    dtype: str = field(default="float32", validator=_DTYPE)
    """Of the weights in training; a role's own `dtype` goes before it."""


@frozen(kw_only=True)
class DataConfig:
    """A data set by registered name, with its own options."""

    name: str = ""
    """Registered name of the data set: `areal backends --role dataset` lists them, `imports` adds your own."""
    options: Options = field(factory=dict, metadata={"role": "dataset", "named_by": "name"})
    """The data set's own keys: `areal backends NAME` shows them."""
    shuffle: bool = True
    """Take the rows in a random order, another one each epoch, the same for a seed."""


@frozen(kw_only=True)
class WorkflowConfig:
    """A workflow by registered name, with its own options."""

    name: str = "single_turn"
    """How a prompt becomes an episode, by registered name."""
    options: Options = field(factory=dict, metadata={"role": "workflow", "named_by": "name"})
    """The workflow's own keys: `areal backends NAME` shows them."""


@frozen(kw_only=True)
class RewardConfig:
    """A reward function by registered name, and the pool it runs in."""

    name: str = ""
    """Registered name of the reward: `areal backends --role reward` lists them, `imports` adds your own."""
    options: Options = field(factory=dict, metadata={"role": "reward", "named_by": "name"})
    """The reward's own keys: `areal backends NAME` shows them."""
    timeout_s: float = field(default=15.0, validator=validators.gt(0.0))
    """One call of the function; its process is killed after it."""
    workers: int = field(default=1, validator=validators.ge(1))
    """Processes that compute rewards side by side."""


@frozen(kw_only=True)
class RolloutConfig:
    """How episodes are made."""

    backend: str = "reference:d1"
    """Inference engine and its layout, for example vllm:d4t2: 4 replicas of 2 tensor ranks."""
    options: Options = field(factory=dict, metadata={"role": "infer", "named_by": "backend"})
    """The engine's own keys: `areal backends NAME` shows them."""
    python: str | None = None
    """Another interpreter for the inference workers, for engines that pin their own torch."""
    dtype: str | None = field(default=None, validator=validators.optional(_DTYPE))
    """Of the inference weights; None takes `model.dtype`."""
    context_length: int = field(default=0, validator=validators.ge(0))
    """Prompt and output tokens of an episode at most; 0 means the model's own limit."""
    cpus_per_replica: int = field(default=1, validator=validators.ge(1))
    """Processors kept for each inference replica."""
    placement: PlacementConfig = PlacementConfig()
    """Of each inference worker."""
    workflow: WorkflowConfig = WorkflowConfig()
    agent: str | Options = ""
    """In place of `workflow`: your agent as FILE.py:FUNCTION, or options of the workflow `agent`, for example
    {command: [./my-agent]}. Without another `reward` the agent tells it."""
    reward: RewardConfig = RewardConfig()
    accept: str = ""
    """Which finished groups are trained on: `mixed`, those whose rewards differ (dynamic sampling), or your own
    function by its name. Another prompt takes the place of a group that is left out. Empty takes all."""
    accept_tries: int = field(default=10, validator=validators.ge(1))
    """How many groups `accept` may leave out between two batches, for each that may be in flight, until a run stops."""
    dynamic_batch: bool = False
    """A group that `accept` leaves out keeps its place in the batch, and the step trains on the others, so its batch
    may be smaller; a batch of which nothing is left is made anew from other prompts. False replaces each such group."""
    prompts_per_step: int = field(default=16, validator=validators.ge(1))
    """Prompts whose groups make the batch of one step."""
    group_size: int = field(default=8, validator=validators.ge(1))
    """Episodes per prompt, whose rewards are compared with one another."""
    max_staleness: int = field(default=2, validator=validators.ge(0))
    """How many versions the weights may move between an episode's first token and its training; 0: none."""
    staleness_policy: StalenessPolicy = StalenessPolicy.WAIT
    """What happens when an episode would be too old."""
    admission: Admission = Admission.JUST_IN_TIME
    """When a prompt begins; with `staleness_policy: drop`, always as early as there is room."""
    max_concurrent: int = field(default=0, validator=validators.ge(0))
    """Groups in flight; 0 means all the staleness bound allows."""
    processes: int = field(default=0, validator=validators.ge(0))
    """Processes of their own that workflows and rewards run in, on any host of the scheduler; 0: the controller's."""
    retries: int = field(default=2, validator=validators.ge(0))
    """How often a member is run again after a retryable error."""
    max_failed_share: float = field(default=0.1, validator=[validators.ge(0.0), validators.lt(1.0)])
    """Of the last 10 * prompts_per_step groups, the share that may fail for good before the run stops."""
    request_timeout_s: float = field(default=1800.0, validator=validators.gt(0.0))
    """One generation request, from asking a replica to its last token; also how long it may be held back."""
    episode_timeout_s: float = field(default=1800.0, validator=validators.gt(0.0))
    """The episodes of a group side by side, with all their turns and tries; or one of an evaluation."""
    adapters: Mapping[str, str] = Factory(dict)
    """Name -> an adapter that workflows may ask beside the policy: a folder in PEFT's format, or a name on the hub."""
    max_replacements: int = field(default=2, validator=validators.ge(0), metadata={"was": "replace"})
    """Lost inference replicas a run may replace, and lost `processes`; 0 goes on with those that are left."""
    sampling: SamplingParams = SamplingParams()

    def __attrs_post_init__(self) -> None:
        """Have `agent` stand where a workflow does."""
        if not self.agent:
            return
        if self.workflow != WorkflowConfig():
            raise PlanError(
                "rollout.agent beside rollout.workflow",
                why=f"an agent is the workflow 'agent', and the workflow {self.workflow.name!r} is named too",
                fix="remove one of them",
            )
        options = {"run": self.agent} if isinstance(self.agent, str) else self.agent
        object.__setattr__(self, "workflow", WorkflowConfig(name="agent", options=options))
        object.__setattr__(self, "agent", "")
        if not self.reward.name:
            object.__setattr__(self, "reward", RewardConfig(name="agent"))


@frozen(kw_only=True)
class RoleConfig:
    """One training role: actor, critic or reference model."""

    backend: str = "reference:d1"
    """Training engine and its layout, for example fsdp:d4t2: 4 data ranks of 2 tensor ranks."""
    options: Options = field(factory=dict, metadata={"role": "train", "named_by": "backend"})
    """The engine's own keys: `areal backends NAME` shows them."""
    path: str | None = None
    """Starting weights of this role; None takes `model.path`."""
    dtype: str | None = field(default=None, validator=validators.optional(_DTYPE))
    """Of this role's weights; None takes `model.dtype`."""
    cpus_per_rank: int = field(default=1, validator=validators.ge(1))
    """Processors kept for each rank."""
    placement: PlacementConfig = PlacementConfig()
    """Of each rank."""
    max_tokens_per_microbatch: int = field(default=16384, validator=validators.ge(1))
    """Tokens of one forward pass at most: memory for speed, the gradient stays the same."""
    optimizer: OptimizerSpec = OptimizerSpec()
    lora: LoraSpec | None = None
    """Train an adapter in place of the model, for example {rank: 16, alpha: 32, targets: [q_proj, v_proj]}."""


@frozen(kw_only=True)
class WeightSyncConfig:
    """How new weights reach the inference fleet after every step."""

    transport: str = AUTO
    """`auto` takes shared memory where everything is on one host, else what reaches across hosts."""
    options: Options = field(factory=dict, metadata={"role": "transport", "named_by": "transport"})
    """The transport's own keys: `areal backends NAME` shows them."""
    pause: str = field(default="auto", validator=validators.in_(("auto", "none", "keep", "abort")))
    """`auto` takes the least disturbing one the engine claims: none, then keep, then abort."""
    lora: str = field(default="auto", validator=validators.in_(("auto", "adapter", "merged")))
    """What travels of an actor with `lora`; `auto` is the adapter alone where both engines claim `weights.adapter`."""
    timeout_s: float = field(default=120.0, validator=validators.gt(0.0))
    """One weight update, from the first tensor to the last replica."""


@frozen(kw_only=True)
class EvaluationSetConfig:
    """A further set of held-out prompts, with its own sampling.

    Example: {data: {name: jsonl, options: {path: hard.jsonl}}, sampling: {temperature: 0.6}, samples: 8}
    """

    data: DataConfig = DataConfig()
    sampling: Options = Factory(dict)
    """Keys of `rollout.sampling` that are others here; without one `temperature` is `evaluation.temperature`."""
    samples: int = field(default=1, validator=validators.ge(1))
    """Answers to each prompt: `eval_reward/NAME` is their mean, `eval_pass/NAME` the share of prompts with one that
    passes."""
    pass_reward: float = 1.0
    """An answer passes if its reward is this or more."""
    max_prompts: int = field(default=256, validator=validators.ge(1))
    """The first so many rows."""


@frozen(kw_only=True)
class EvaluationConfig:
    """Greedy evaluation on held-out prompts. `every_steps` 0 evaluates only before and after."""

    data: DataConfig | None = None
    """The held-out prompts; None evaluates nothing."""
    every_steps: int = field(default=20, validator=validators.ge(0))
    """Steps between evaluations."""
    before: bool = True
    """Also evaluate before the first step."""
    max_prompts: int = field(default=256, validator=validators.ge(1))
    """The first so many held-out prompts."""
    temperature: float = 0.0
    """0 is greedy."""
    sets: Mapping[str, EvaluationSetConfig] = Factory(dict)
    """Name -> a further set, scored as `eval_reward/NAME`, with the run's workflow and reward."""


@frozen(kw_only=True)
class CheckpointConfig:
    """States saved on the way; one is saved at the end, on Ctrl-C and on an error the trainers survive anyway.

    By time, saving takes a twentieth of it at most; `every_steps` and `every_s` both 0 save none.
    """

    every_steps: int = field(default=0, validator=validators.ge(0))
    """Steps between states; 0 goes by time."""
    every_s: float = field(default=600.0, validator=validators.ge(0.0))
    """Seconds between states at least."""
    keep: int = field(default=2, validator=validators.ge(1))
    """The newest states that stay on disk."""
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
    """Who starts the workers, by registered name: `areal backends --role scheduler`."""
    options: Options = field(factory=dict, metadata={"role": "scheduler", "named_by": "backend"})
    """The scheduler's own keys: `areal backends NAME` shows them."""
    start_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    """From asking for workers until all of them have loaded their models."""
    step_timeout_s: float = field(default=1800.0, validator=validators.gt(0.0))
    """One call of a training role: a step, a forward pass, a checkpoint."""
    heartbeat_timeout_s: float = field(default=8.0, validator=validators.gt(0.0))
    """A worker that is silent for this long is lost."""
    restarts: int = field(default=2, validator=validators.ge(0))
    """How often a run that lost a training worker starts again by itself, from its last state; 0 ends it."""


@frozen(kw_only=True)
class LoggerConfig:
    """A metrics sink by registered name: tensorboard, prometheus, trackio, wandb, swanlab, or your own."""

    name: str
    """Registered name of the sink: `areal backends --role logger` lists them."""
    options: Options = field(factory=dict, metadata={"role": "logger", "named_by": "name"})
    """The sink's own keys: `areal backends NAME` shows them."""


@frozen(kw_only=True)
class RunConfig:
    """One run. `areal train run.yaml a.b=c` reads it; `config.yaml` in the run folder is it, resolved."""

    TOLD_BY: ClassVar[str] = "areal config"
    """The command that tells of a key."""

    name: str = "run"
    """What the run is called, in its folder and in loggers."""
    kind: str = RL
    """How is trained: `rl`, or a registered kind (`areal backends --role kind`): sft, dpo, reward_model, ..."""
    options: Options = field(factory=dict, metadata={"role": "kind", "named_by": "kind"})
    """Of the kind, for example {batch_size: 32, epochs: 1}; `rl` has none."""
    out: str = ""
    """The run folder; empty means `runs/<name>`."""
    seed: int = 1
    """Of the order of prompts, of sampling and of new weights."""
    steps: int = field(default=100, validator=validators.ge(1))
    """Batches to train on; each makes one version of the policy."""
    imports: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Your own files; what they register is there in every process."""
    deterministic: bool = False
    """The same bits again: engines that can are told to, workers compute with deterministic kernels, at their cost."""
    device: str = "auto"
    """A kind of device (`areal backends --role device`); `auto` takes the accelerator that is here, else the cpu."""
    placement: str = field(default=SEPARATE, validator=validators.in_((SEPARATE, SHARED)))
    """`separate`: every role has devices of its own, and generation goes on while the trainer works. `shared`: the
    fleet is on the actor's devices and they take turns, so that one device is enough; nothing overlaps."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    actor: RoleConfig = RoleConfig()
    critic: RoleConfig | None = None
    """A value model, trained beside the policy for GAE. None: rewards alone make the advantages."""
    reference: RoleConfig | None = None
    """The frozen model that KL penalties measure from. None needs `algorithm.advantages.kl.coefficient` 0."""
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
    """Where metrics go beside `metrics.jsonl`, for example [{name: tensorboard}]."""

    @property
    def train_roles(self) -> dict[str, RoleConfig]:
        """Return the training roles the run has, by name."""
        roles = {"actor": self.actor, "critic": self.critic, "reference": self.reference}
        return {name: role for name, role in roles.items() if role is not None}
