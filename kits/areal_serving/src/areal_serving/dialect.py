"""How one kind of generation server is spoken to; everything else about serving is shared (`engine`).

A dialect is stateless: it builds commands and payloads, and reads answers. It is told what to do, never when.

Knows: nothing of any server; it is the seam.
Does not know: processes, pauses, versions, retries (`engine`, `server`), or where weights lie (`staging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import Factory, field, frozen

from areal_core.contract.inference import GenerationRequest, InferenceSpec, PauseMode, VersionSpan
from areal_serving.http import Api


@frozen(kw_only=True)
class Launch:
    """What a server is started with. `key` is the run's secret for it: in the environment, never in the command.

    With `spec.part` it is that part of a server over several hosts; each runs in its `folder`.
    """

    spec: InferenceSpec
    python: str
    port: int
    key: str = field(repr=False)
    folder: Path
    """Private to this server, removed with it."""
    traces: Path | None = None
    """Where its profiler is to write; None, as in most runs, if no step is to be traced."""


@frozen(kw_only=True)
class Command:
    """A command line, and what is added to the environment it runs in."""

    argv: tuple[str, ...] = field(converter=tuple[str, ...])
    environ: Mapping[str, str] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class ServerFacts:
    """What a server that answers says of itself. `context_length` counts prompt and output tokens."""

    engine_version: str
    context_length: int
    details: Mapping[str, str] = Factory(dict)


@frozen(kw_only=True)
class Call:
    """One request, checked, with everything that depends on what was generated before worked out.

    `server_id` is unique in the server's life; `cache_space` separates prefix-cache entries of one
    version of the weights (and of an adapter) from all others.
    """

    request: GenerationRequest
    server_id: str
    max_tokens: int
    min_tokens: int
    seed: int | None
    end_ids: tuple[int, ...]
    """Token ids that end the output: the model's own unless they are ignored, and the request's."""
    cache_space: str


@frozen(kw_only=True)
class Reply:
    """What the server gave for one call, as it gave it; `finish` is `stop`, `length` or `abort`."""

    output_ids: tuple[int, ...] = field(converter=tuple[int, ...])
    logprobs: tuple[float, ...] = field(converter=tuple[float, ...])
    spans: tuple[VersionSpan, ...] = field(converter=tuple[VersionSpan, ...])
    finish: str
    token_extras: Mapping[str, Any] = Factory(dict)  # Any: tensors, by claimed ability
    queued_s: float = 0.0
    first_token_s: float = 0.0
    """Seconds until the first token; 0.0 if the server does not tell, as vLLM's route of tokens: the engine then
    reports the time until the request was sent, which is a lower bound."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache, None if the server does not tell."""


@frozen(kw_only=True)
class Gauges:
    """A server's own counts. `tokens_generated` moves while requests run; `metrics` have the core's names.

    Names of metrics: kv_used_share, prefix_hit_share, num_preempted, and whatever the server has beside them.
    """

    num_running: int
    num_waiting: int
    tokens_generated: int
    metrics: Mapping[str, float] = Factory(dict)


@runtime_checkable
class Dialect(Protocol):
    """One kind of server.

    Every coroutine raises `ServerAnswer` (`http`) for an answer that is no success, and
    `ServerGone` for none at all; the engine decides what that means for a request or an update.
    """

    @property
    def name(self) -> str:
        """Return the engine's name, for messages and for its environment: `areal env create NAME`."""

    def command(self, launch: Launch) -> Command:
        """Return how to start it: on loopback, with the key, with hooks for weights.

        A part of a server that does not lead serves nobody; it ends when the leader does.
        """

    def blames_model(self, tail: str) -> bool:
        """Tell from the last lines of a server that ended while it started whether its model folder is at fault."""

    async def facts(self, api: Api) -> ServerFacts:
        """Ask what it is. Called once it is healthy, of every server that is started, before anything else."""

    async def healthy(self, api: Api) -> bool:
        """Ask whether it would serve. False while it starts; cheap."""

    async def generate(self, api: Api, call: Call) -> Reply:
        """Generate; returns when it ended, also by `abort` or a pause. Cancelling drops the connection."""

    async def abort(self, api: Api, server_ids: Sequence[str]) -> None:
        """End calls; each returns what it has, with finish `abort`. Unknown ids are no error."""

    async def pause(self, api: Api, mode: PauseMode) -> None:
        """Stop computing tokens before returning."""

    async def resume(self, api: Api) -> None:
        """Compute again."""

    async def prove(self, api: Api, folder: Path) -> Mapping[str, str]:
        """Have every engine worker read the staged weights in `folder` and return name -> fingerprint.

        Generation goes on meanwhile. All workers must agree.

        Raises:
            FingerprintMismatch: they do not.
        """

    async def load(self, api: Api, folder: Path, version: int, *, keep_cache: bool) -> None:
        """While paused: every worker loads the staged weights and stamps `version` from the next token on.

        `keep_cache` says whether keys and values of running requests stay or are computed anew.
        """

    async def gauges(self, api: Api) -> Gauges:
        """Read its counters; cheap."""
