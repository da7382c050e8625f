"""Optional abilities: each a small protocol, a claim in the manifest and a group of checks.

An engine that does not claim an ability does not have the method at all; the plan
refuses a run that needs it, naming the backends that can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from areal_core.contract.weights import Offer


@runtime_checkable
class SupportsOffload(Protocol):
    """Claim `memory.offload`: a train engine can give its device memory back between steps."""

    def offload(self) -> None:
        """Move weights and optimizer off the device. Idempotent."""

    def onload(self) -> None:
        """Bring them back. Idempotent; called before the next use."""


@runtime_checkable
class SupportsBackgroundState(Protocol):
    """Claim `checkpoint.background`: a train engine writes a state while the next steps run. Since 1.2.

    At most one state is begun and not finished. Whatever the engine is asked meanwhile, what is written is the state
    of the moment `begin_state` was called; `close` drops a state that was not finished, and what was written of it.
    """

    def begin_state(self, path: Path) -> None:
        """Take what `save_state` would write out of the way of the next step, and return. Collective.

        Nothing is at `path` yet, or what was there before.

        Raises:
            TrainError: a state was begun and not finished; that one goes on.
            StorageError: on every rank: no place for it. Nothing is begun then, and nothing left behind.
        """

    def state_written(self) -> bool:
        """Tell whether this rank has nothing more to write. Not collective, and waits for nothing.

        True if nothing was begun, and if writing failed: `finish_state` tells how it went.
        """

    def finish_state(self) -> None:
        """Wait until every rank has written its part; then the folder is at `path`, complete. Collective.

        Does nothing if nothing was begun.

        Raises:
            StorageError: on every rank: one could not write its part. What was at `path` before is still there, nothing
                else is, and another state can be begun.
        """


@runtime_checkable
class SupportsSleep(Protocol):
    """Claim `memory.sleep`: an inference engine can give its device memory back."""

    async def sleep(self) -> None:
        """Free weights and cache. Only when paused. Idempotent."""

    async def wake(self) -> None:
        """Take the memory again; weights must be received before generating."""


@runtime_checkable
class SupportsScoring(Protocol):
    """Claim `scoring`: an inference engine can tell the log-probs of given tokens."""

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        """Return log p(token t | tokens < t) for each token, 0.0 for the first."""


@runtime_checkable
class SupportsAdapters(Protocol):
    """Claim `lora.adapters`: an inference engine can serve adapters over fixed base weights."""

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Load one version of an adapter; later requests that name it use it."""

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""


@frozen(kw_only=True)
class ToolCall:
    """One call a model asked for. `arguments` is the JSON text of an object.

    Example: ToolCall(name="add", arguments='{"a": 1, "b": 2}')
    """

    name: str
    arguments: str


@frozen(kw_only=True)
class ToolParse:
    """An output read for tool calls: what is said to the user, and the calls in the order they were written."""

    content: str
    calls: tuple[ToolCall, ...] = field(default=(), converter=tuple[ToolCall, ...])


@runtime_checkable
class SupportsToolCalls(Protocol):
    """Claim `tools.parse`: an inference engine reads tool calls with the parser its options name. Since 1.2."""

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read one whole output, decoded with its special tokens.

        A pure function of its arguments: it may be called while requests run or weights change. Text without a
        call, or with a broken one, is content. Any: each of `tools` is a JSON object as chat templates take them,
        {"type": "function", "function": {"name": ..., "parameters": {...}}}.

        Raises:
            CapabilityError: the engine's options name no parser.
        """


@runtime_checkable
class SupportsStreaming(Protocol):
    """Claim `streams`: a weight transport that stores nothing; both ends are there at the same time. Since 1.1.

    The controller calls `expect` between `open` and the first call to a worker, then has the trainer send and every
    receiver receive at once. `release` ends whoever still sends or receives. An offer is good for one transfer,
    and each receiver's for one source.
    """

    def expect(self, offer: Offer, receivers: Sequence[str]) -> Sequence[Offer]:
        """Tell who will receive, by worker id; return an offer for each, in that order. The sender has `offer` itself.

        Raises:
            WeightSyncError: nobody receives, a receiver is named twice, or the offer was released.
        """
