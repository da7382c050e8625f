"""What an inference backend implements: one replica that serves one policy.

All methods are coroutines called in the worker's event loop; many `generate` calls run
at once. The engine stamps versions; nobody after it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from attrs import Factory, field, frozen, validators

from areal_core.contract.data import StopReason
from areal_core.contract.ids import RequestId
from areal_core.contract.train import EngineInfo, LoraSpec
from areal_core.contract.weights import Receipt, WeightSource

IMAGES = "images"
"""Key in `GenerationRequest.extras`: tuple of bytes, whole PNG or JPEG files in the order of their placeholders.

`input_ids` hold one placeholder token per image, the model's own (`image_token_id` of config.json); the engine
puts as many in its place as the image needs. Claim `images`, since 1.2.
"""

KV_USED_SHARE = "kv_used_share"
"""Share of the memory for keys and values that running requests hold, in [0, 1]. Since 1.2."""
PREFIX_HIT_SHARE = "prefix_hit_share"
"""Share of all prompt tokens since start that were found in the prefix cache, in [0, 1]. Since 1.2."""
NUM_PREEMPTED = "num_preempted"
"""How often since start a running request lost its keys and values to make room. Since 1.2."""
FLEET_METRICS = (KV_USED_SHARE, PREFIX_HIT_SHARE, NUM_PREEMPTED)
"""The names in `EngineStatus.metrics` that the core reads."""


class PauseMode(StrEnum):
    """What happens to requests in flight while the engine is paused."""

    KEEP = "keep"
    """Frozen in place; they go on after `resume` and their next tokens carry the new version."""
    ABORT = "abort"
    """They return at once with the tokens they have, stop reason `aborted`; the pool continues them."""


@frozen(kw_only=True)
class SamplingParams:
    """How tokens are drawn. A field an engine cannot honour is refused at planning, and so is a value out of its range.

    Reported log-probs are those of the distribution sampled from, after penalties, temperature and filters; of a
    greedy request, whose own distribution would say 0, those of temperature 1 after penalties, without filters.
    """

    max_new_tokens: int = field(default=256, metadata={"minimum": 1})
    """Output tokens at most."""
    min_new_tokens: int = field(default=0, metadata={"minimum": 0})
    """Output tokens before one may end the output."""
    temperature: float = field(default=1.0, metadata={"minimum": 0})
    """Divides the logits; 0 is greedy."""
    top_p: float = field(default=1.0, metadata={"exclusiveMinimum": 0, "maximum": 1})
    """Draw from the fewest likeliest tokens that have this probability together; 1 is off."""
    top_k: int = field(default=0, metadata={"minimum": 0})
    """Draw from so many likeliest tokens; 0 is off."""
    stop_token_ids: tuple[int, ...] = field(default=(), converter=tuple[int, ...])
    """Tokens that end the output, beside the model's own."""
    stop: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Texts that end the output at the first token that completes one of them; the token stays."""
    ignore_eos: bool = False
    """Keep going past the model's end tokens; `stop_token_ids` still count."""
    seed: int | None = None
    """None lets the engine choose."""
    min_p: float = field(default=0.0, metadata={"minimum": 0, "maximum": 1})
    """Rules out tokens less probable than this share of the likeliest; 0 is off. Claim `sampling.min_p`, since 1.2."""
    frequency_penalty: float = field(default=0.0, metadata={"minimum": -2, "maximum": 2})
    """Taken off a logit once per earlier output token of that id; 0 is off. In [-2, 2]. Claim `sampling.penalties`."""
    presence_penalty: float = field(default=0.0, metadata={"minimum": -2, "maximum": 2})
    """Taken off a logit once if there is any such token; 0 is off. In [-2, 2]. Claim `sampling.penalties`."""
    repetition_penalty: float = field(default=1.0, metadata={"exclusiveMinimum": 0, "maximum": 2})
    """r makes a positive logit of an id in prompt or output 1/r times as large, a negative one r times; 1 is off.
    In (0, 2]. Claim `sampling.repetition_penalty`, since 1.2."""


class Grammar(StrEnum):
    """How the text of a `Structure` is to be read."""

    JSON_SCHEMA = "json_schema"
    """A JSON schema, as JSON; the output is one JSON value that it allows."""
    REGEX = "regex"
    """A regular expression that the whole output matches."""


@frozen(kw_only=True)
class Structure:
    """What the text of an output must look like. Claim `sampling.structured`, since 1.2.

    Example: Structure(grammar=Grammar.REGEX, text="yes|no")
    """

    grammar: Grammar = field(converter=Grammar)
    text: str = field(validator=validators.min_len(1))


@frozen(kw_only=True)
class ReplicaPart:
    """Which part of a replica over several hosts an engine is: one on each host, part 0 leads. Claim `replica.hosts`.

    The ranks of the layout are cut into `num_hosts` equal runs; those of part `rank` are on its host. Since 1.4.

    Example: ReplicaPart(rank=1, num_hosts=2, host="10.0.0.2", leader="tcp://10.0.0.1:23456", key="s3cret")
    """

    rank: int
    num_hosts: int
    host: str
    """Address of this part's own host, at which the others reach it; nothing listens at any other but loopback."""
    leader: str
    """`tcp://host:port` of the leader's host, where nobody listens yet: there the parts meet."""
    key: str = field(default="", repr=False)
    """Secret of this replica, by which its parts may know one another."""

    @property
    def leads(self) -> bool:
        """Return whether this part takes the requests."""
        return self.rank == 0


@frozen(kw_only=True)
class InferenceSpec:
    """Everything one replica needs. `context_length` 0 means the model's own."""

    model_path: str
    dtype: str = "float32"
    layout: Mapping[str, int] = Factory(dict)
    context_length: int = 0
    max_concurrent: int = 256
    seed: int = 1
    device: str = "cpu"
    replica: int = 0
    options: Mapping[str, Any] = Factory(dict)  # Any: the values are the backend's own types
    lora: LoraSpec | None = None
    """Later versions are adapters of this shape over the folder's weights, version 0 the one in its `path`, if there
    is one. Claim `weights.adapter`, since 1.3."""
    part: ReplicaPart | None = None
    """None where the whole replica is on one host; else `lora` is None. Claim `replica.hosts`, since 1.4."""


@frozen(kw_only=True)
class GenerationRequest:
    """One prompt. `num_prior` counts tokens at the end of `input_ids` that an earlier, interrupted
    call of the same request generated: they count towards stop strings and minimum length, and
    offset the seed, so that a continued request behaves as one.

    Example: GenerationRequest(request_id="t/0/3#1", input_ids=(5, 9), sampling=SamplingParams(max_new_tokens=8))
    """

    request_id: RequestId
    input_ids: tuple[int, ...] = field(converter=tuple[int, ...])
    sampling: SamplingParams = SamplingParams()
    num_prior: int = 0
    extras: Mapping[str, Any] = Factory(dict)  # Any: `IMAGES` and the like, by claimed ability
    adapter: str = ""
    """Name of a loaded adapter to generate with over the folder's weights or the last ones received whole, "" for the
    policy. Claim `lora.adapters`, since 1.1."""
    structure: Structure | None = None
    """Since 1.2; prior tokens are the beginning of the text it is about."""


@frozen(kw_only=True)
class VersionSpan:
    """Output tokens [start, stop) were computed by the weights of `version`."""

    start: int
    stop: int
    version: int


@frozen(kw_only=True)
class Timings:
    """Seconds, as the engine saw them: waiting for a slot, until the first token, in all.

    Where a server tells no time of the first token, `first_token_s` is a lower bound: when it was sent the request.
    """

    queued_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


@frozen(kw_only=True)
class Generation:
    """What came out. `output_ids` include the stop token; `logprobs` has one entry per output id.

    `version_spans` cover [0, len(output_ids)) without gap or overlap, versions never decreasing.

    Example: Generation(output_ids=(4, 7, 1), logprobs=(-0.7, -0.1, -0.2),
        version_spans=(VersionSpan(start=0, stop=1, version=3), VersionSpan(start=1, stop=3, version=4)),
        stop_reason=StopReason.STOP)
    """

    output_ids: tuple[int, ...] = field(converter=tuple[int, ...])
    logprobs: tuple[float, ...] = field(converter=tuple[float, ...])
    version_spans: tuple[VersionSpan, ...] = field(converter=tuple[VersionSpan, ...])
    stop_reason: StopReason = field(converter=StopReason)
    timings: Timings = Timings()
    token_extras: Mapping[str, Any] = Factory(dict)  # Any: tensors [len(output_ids), ...] by claimed ability


@frozen(kw_only=True)
class EngineStatus:
    """A snapshot for routing and metrics; cheap, never blocks on generation."""

    version: int
    num_running: int
    num_waiting: int
    paused: bool
    tokens_generated: int = 0
    busy_s: float = 0.0
    """Seconds spent computing since start; with wall time it gives the idle share."""
    metrics: Mapping[str, float] = Factory(dict)
    """What else the engine counts, by name. `FLEET_METRICS` have one meaning everywhere; others are its own."""


@runtime_checkable
class InferenceEngine(Protocol):
    """One replica of the policy, in a process of its own, driven by the pool and by weight sync.

    Or one part of a replica over several hosts (`InferenceSpec.part`). All parts are started at once. Only the leader
    is asked for what is not said of every part here: `receive_weights`, `commit_weights`, `abort_weights`, `status`,
    `close`. No part goes on without the others: the first lost one ends the replica.
    """

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Load the model and be ready to generate as version 0. Called once, first.

        The leader returns once every part is ready; another part may return before, and tells by `status` if it failed.

        Raises:
            ModelError: the folder is missing or holds no model this engine can serve.
        """

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt. Many calls run at once; cancelling one frees its slot.

        Returns when it stops, reaches its budget, or is aborted by a pause (with what it has).

        Raises:
            PromptTooLong: no room for one token within the context.
            CapabilityError: the request asks for what the engine does not claim, or for an adapter never loaded;
                or this part of a replica does not lead.
            GenerationFailed: anything the pool may retry elsewhere.
        """

    async def pause(self, mode: PauseMode) -> None:
        """Stop computing tokens before returning. New requests wait. Idempotent.

        Raises:
            CapabilityError: the mode is not claimed.
        """

    async def resume(self) -> None:
        """Compute again. Idempotent."""

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Phase one: take every tensor, prove it, hold it ready; do not serve it yet.

        With the claim `weights.staged` the engine goes on generating from the old weights;
        without it the core pauses the engine first and an abort may cost the replica a restart.
        The fingerprints are of the bytes the engine holds now, not of the bytes it was handed.

        With `InferenceSpec.lora` a version is an adapter over the folder's weights, in place of the version before,
        not on top of it: every A and B of the layers it targets, under PEFT's names (`TrainEngine.send_weights`).

        Every part of a replica gets a source of its own, all at once, and takes every tensor; the leader returns once
        the others hold the version too.

        Raises:
            CoverageError: names, shapes or dtypes do not match the model, or the adapter's layers, one to one.
            VersionRegressed: `version` is not newer than the one served.
        """

    async def commit_weights(self, version: int) -> None:
        """Phase two: from the next token on, compute with and stamp `version`. Must not fail.

        Cached keys and values of requests in flight are kept or recomputed as claimed
        (`weights.kv`); the prefix cache never serves old entries to new requests. An adapter's
        commit may end requests in flight as `aborted`, with the tokens they have; the pool continues them.

        The leader's commit is that of the whole replica; the other parts are called after it, to free what was before.
        """

    async def abort_weights(self) -> None:
        """Drop what phase one holds; keep serving the old version. Idempotent."""

    async def status(self) -> EngineStatus:
        """Return a snapshot. Polled about once a second.

        Raises:
            GenerationFailed: this part of a replica, or another one it needs, is lost.
        """

    async def close(self) -> None:
        """Fail waiting calls with GenerationFailed, free everything. Idempotent."""
