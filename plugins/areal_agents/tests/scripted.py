"""A session whose policy says what a test wrote, token by token as no tokenizer would, and an endpoint over such."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from areal_agentic.endpoint import SessionLimits
from areal_agents.endpoint import Endpoint
from areal_agents.endpoint_config import EndpointConfig
from areal_agents.episode import AgentSession
from areal_core.contract.data import StopReason, Trajectory
from areal_core.contract.errors import CapabilityError
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, Structure, VersionSpan
from areal_core.contract.optional import ToolParse
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_renderers.testing.tokenizers import family_tokenizer

QWEN = family_tokenizer("qwen3")
END = "<|im_end|>"
THOUGHTFUL = f"<think>\nOne and two.\n</think>\n\nIt is 3.{END}"
CALLING = f'<tool_call>\n{{"name": "add", "arguments": {{"a": 1, "b": 2}}}}\n</tool_call>{END}'
ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def tokens(text: str) -> list[int]:
    """Return control tokens as such, and everything else letter by letter: not what encoding the text gives."""
    made: list[int] = []
    for token in QWEN.encode(text, add_special_tokens=False):
        if token in QWEN.added_tokens_decoder:
            made.append(token)
        else:
            made += [each for letter in QWEN.decode([token]) for each in QWEN.encode(letter)]
    return made


class Scripted:
    """Says `script[n]` to request n, the last one from then on; or what `say` returns for a prompt."""

    image_token_id = None

    def __init__(self, *script: str | Exception, say: Callable[[str], str] | None = None, name: str = "t") -> None:
        self.task_id, self.group_id = TaskId(f"train/0/{name}"), GroupId(f"train/0/{name}")
        self.sampling, self.tokenizer = SamplingParams(max_new_tokens=512), QWEN
        self.asked: list[tuple[list[int], SamplingParams, Structure | None]] = []
        self.given: list[tuple[list[int], Generation]] = []
        self.held: asyncio.Event | None = None
        """While it is not set, nothing is answered."""
        self.arrived = asyncio.Semaphore(0)
        """Released for every request that arrives."""
        self.cancelled = asyncio.Semaphore(0)
        """Released for every request that is cancelled."""
        self._script, self._say = script, say

    async def generate(
        self, input_ids: Sequence[int], sampling: Any = None, *, structure: Any = None, **more: Any
    ) -> Generation:
        number = len(self.asked)
        self.asked.append((list(input_ids), sampling, structure))
        self.arrived.release()
        try:
            await (self.held.wait() if self.held is not None else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        said = self._say(QWEN.decode(input_ids)) if self._say else self._script[min(number, len(self._script) - 1)]
        if isinstance(said, Exception):
            raise said
        ids = tokens(said)[: sampling.max_new_tokens]
        stopped = ids[-1] == QWEN.eos_token_id or any(stop in QWEN.decode(ids) for stop in sampling.stop)
        made = Generation(
            output_ids=ids,
            logprobs=[-0.5 - number] * len(ids),
            version_spans=(VersionSpan(start=0, stop=len(ids), version=7),),
            stop_reason=StopReason.STOP if stopped else StopReason.LENGTH,
        )
        self.given.append((list(input_ids), made))
        return made

    async def parse_tool_calls(self, text: str, tools: Any) -> ToolParse:
        raise CapabilityError("this engine reads no calls")

    async def reward(self, value: RewardInput) -> RewardResult:
        return RewardResult(value=0.0)


@asynccontextmanager
async def listening(
    session: Any, *, patience_s: float = 10.0, limits: SessionLimits | None = None, **options: Any
) -> AsyncIterator[tuple[Endpoint, AgentSession]]:
    """Serve one session."""
    endpoint = Endpoint(EndpointConfig(**options), patience_s=patience_s)
    await endpoint.start()
    try:
        with endpoint.open(session, limits or SessionLimits(max_requests=10_000)) as opened:
            yield endpoint, opened
    finally:
        await endpoint.close()


@functools.cache
def _endpoint(patience_s: float, options: tuple[tuple[str, Any], ...]) -> Endpoint:
    return Endpoint(EndpointConfig(**dict(options)), patience_s=patience_s)


@asynccontextmanager
async def asking(
    session: Any, *, patience_s: float = 10.0, limits: SessionLimits | None = None, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, AgentSession]]:
    """Ask one session without a network between; all that were given the same options share an endpoint."""
    endpoint = _endpoint(patience_s, tuple(options.items()))
    with endpoint.open(session, limits or SessionLimits(max_requests=10_000)) as opened:
        through = httpx.ASGITransport(app=endpoint.app())
        async with httpx.AsyncClient(transport=through, base_url="http://here/v1", headers=key(opened.key)) as client:
            yield client, opened


def key(name: str) -> dict[str, str]:
    """Return the header that holds a key."""
    return {"authorization": f"Bearer {name}"}


def texts(trajectory: Trajectory) -> tuple[str, str]:
    """Return a trajectory's text, and that of the tokens which are trained on."""
    ids, mask = trajectory.input_ids, trajectory.loss_mask
    return QWEN.decode(ids.tolist()), QWEN.decode(ids[mask].tolist())
