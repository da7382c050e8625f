"""The inference contract over vLLM servers, and the optional abilities they have.

Knows: scoring, adapters, sleep, tool calls as vLLM offers them.
Does not know: everything all servers share (`areal_serving.engine`), payloads (`payloads`), routes (`dialect`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest
from areal_core.contract.optional import ToolCall, ToolParse
from areal_serving.adapter_routes import AdapterRoutes
from areal_serving.adapting import Adapting
from areal_serving.http import Api
from areal_serving.images import check_images
from areal_serving.policy_adapter import PolicyRoutes
from areal_serving.refusals import refuse_tool_calls
from areal_serving.requests import refuse_extras
from areal_serving.scoring import scores
from areal_serving.sleeping import SleepingEngine
from areal_vllm.config import VLLMConfig
from areal_vllm.dialect import GENERATE, VLLMDialect, rpc
from areal_vllm.direct import VLLMDirect
from areal_vllm.payloads import score_body, scores_of
from areal_vllm.profiler import VLLMProfiler

_ADAPTERS = AdapterRoutes(
    engine="vLLM",
    load_path="/v1/load_lora_adapter",
    unload_path="/v1/unload_lora_adapter",
    is_there=lambda error: "has already been loaded" in error.text,
    is_gone=lambda error: error.status == 404,
)


class VLLMEngine(SleepingEngine):
    """One replica over one vLLM server.

    Example: engine = VLLMEngine(VLLMConfig()); await engine.start(InferenceSpec(model_path="/models/m"))
    """

    axes = "tp"

    def __init__(self, config: VLLMConfig | None = None) -> None:
        self._config = config or VLLMConfig()
        dialect, direct, profiler = VLLMDialect(self._config), VLLMDirect(), VLLMProfiler()
        policy = PolicyRoutes(load=_ADAPTERS.load, unload=_ADAPTERS.unload, stamp=dialect.stamp)
        super().__init__(dialect, self._config, direct=direct, policy=policy, profiler=profiler)
        self._adapting = Adapting(self._config.max_adapters, load=_ADAPTERS.load, unload=_ADAPTERS.unload)
        self._numbers = itertools.count(1)
        self.can_sleep = self._config.sleep

    def refuse(self, request: GenerationRequest) -> None:
        """Refuse extras nobody reads, and images that do not fit their placeholders."""
        refuse_extras(request, (IMAGES,), "vllm")
        check_images(request, self.running.model.image_token)

    async def revived(self, api: Api) -> None:
        """Load the adapters into a server that was started again, and have it sleep if the one before did."""
        await self._adapting.revive(api)
        await super().revived(api)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt; with an adapter, stamped with the adapter's version.

        Raises:
            PromptTooLong, BatchError, CapabilityError, GenerationFailed: as the contract says.
        """
        return await self._adapting.generated(request, super().generate)

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        """Return log p(token t | tokens < t) for each token, 0.0 for the first.

        Raises:
            BatchError, PromptTooLong: of the tokens.
            GenerationFailed: the server was lost, or paused with `abort`, too often; or it slept and has no weights.
        """
        ask = functools.partial(self._scores, input_ids, temperature)
        return await scores(self.running, input_ids, temperature, ask)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Load one version of an adapter; later requests that name it use it, those in flight keep theirs.

        Raises:
            ModelError: the folder holds no adapter of this model.
            VersionRegressed: this version, or a newer one, is loaded.
            CapabilityError: no place for it, or vLLM cannot use it.
        """
        await self._adapting.load(self.running, name, path, version)

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""
        await self._adapting.unload(self.running, name)

    async def put_to_sleep(self, api: Api) -> None:
        """Have vLLM free weights and cache; on the CPU it would free nothing, and its workers are asked."""
        if self.on_cpu:
            await rpc(api, "areal_sleep")
        else:
            await api.post("/sleep", params={"level": "2"})

    async def wake_up(self, api: Api) -> None:
        """Have vLLM take the memory again."""
        if self.on_cpu:
            await rpc(api, "areal_wake")
        else:
            await api.post("/wake_up")

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read one whole output with the parser `rollout.options.tool_parser` names. Any: JSON.

        Raises:
            CapabilityError: it names none, or one vLLM does not have.
        """
        running = self.running
        refuse_tool_calls(self._config.tool_parser, "hermes or llama3_json")
        asked = {"parser": self._config.tool_parser, "text": text, "tools": [dict(tool) for tool in tools]}
        body = {"method": "areal_parse_tools", "kwargs": asked}
        answer = await running.server.asked(lambda api: api.post("/collective_rpc", body))
        found = answer["results"][0]
        if found.get("problem"):
            raise CapabilityError("vLLM could not parse tool calls", why=found["problem"])
        return ToolParse(content=found["content"], calls=[ToolCall(**call) for call in found["calls"]])

    async def _scores(self, input_ids: Sequence[int], temperature: float, api: Api, version: int) -> list[float] | None:
        policy = self.running.state.policy
        body = score_body(f"score-{next(self._numbers)}", input_ids, temperature, policy)
        answer = await api.post(GENERATE, body, timeout_s=None)
        return None if answer["prompt_logprobs"] is None else scores_of(answer, input_ids)
