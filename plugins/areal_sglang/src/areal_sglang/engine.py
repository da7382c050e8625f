"""The inference contract over SGLang servers, and the optional abilities they have.

Knows: scoring, adapters, sleep, tool calls as SGLang offers them.
Does not know: everything all servers share (`areal_serving.engine`), payloads (`payloads`), routes (`dialect`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.abilities import asked_of
from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest
from areal_core.contract.optional import ToolCall, ToolParse
from areal_serving.adapter_routes import AdapterRoutes
from areal_serving.adapters import ServedAdapter
from areal_serving.adapting import Adapting
from areal_serving.http import Api
from areal_serving.images import check_images
from areal_serving.policy_adapter import PolicyRoutes
from areal_serving.refusals import refuse_tool_calls
from areal_serving.requests import refuse_extras
from areal_serving.scoring import scores
from areal_serving.sleeping import SleepingEngine
from areal_sglang.adapter import completed
from areal_sglang.config import SGLangConfig
from areal_sglang.dialect import SGLangDialect
from areal_sglang.direct import SGLangDirect
from areal_sglang.manifest import MANIFEST
from areal_sglang.payloads import score_body, scores_of, server_name
from areal_sglang.profiler import SGLangProfiler

_MEMORY_TIMEOUT_S = 300.0
_ADAPTERS = AdapterRoutes(
    engine="SGLang",
    load_path="/load_lora_adapter",
    unload_path="/unload_lora_adapter",
    is_there=lambda error: "is already loaded" in error.text,
    is_gone=lambda error: "does not exist" in error.text,
)


class SGLangEngine(SleepingEngine):
    """One replica over one SGLang server.

    Example: engine = SGLangEngine(SGLangConfig()); await engine.start(InferenceSpec(model_path="/models/m"))
    """

    def __init__(self, config: SGLangConfig | None = None) -> None:
        self._config = config or SGLangConfig()
        dialect, direct, profiler = SGLangDialect(self._config), SGLangDirect(), SGLangProfiler()
        policy = PolicyRoutes(load=self._load_adapter, unload=_ADAPTERS.unload, stamp=dialect.stamp)
        super().__init__(dialect, self._config, direct=direct, policy=policy, profiler=profiler)
        self._adapting = Adapting(self._config.max_adapters, load=self._load_adapter, unload=_ADAPTERS.unload)
        self.can_sleep = self._config.sleep
        self._numbers = itertools.count(1)

    def refuse(self, request: GenerationRequest) -> None:
        """Refuse what the manifest does not claim."""
        refuse_extras(request, (IMAGES,), "sglang")
        for word in asked_of(request):
            claim = MANIFEST.claims.get(word)
            if claim is None or not claim.claimed:
                raise CapabilityError(
                    f"request {request.request_id!r} asks for {word}",
                    why="not claimed" if claim is None else claim.why,
                    fix="use an inference backend that claims it: areal backends --role infer",
                )
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
            GenerationFailed: the server was lost, or paused with `abort`, too often.
        """
        ask = functools.partial(self._scores, input_ids, temperature)
        return await scores(self.running, input_ids, temperature, ask)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Load one version of an adapter; later requests that name it use it, those in flight keep theirs.

        Raises:
            ModelError: the folder holds no adapter of this model.
            VersionRegressed: this version, or a newer one, is loaded.
            CapabilityError: no place for it, or SGLang cannot use it.
        """
        await self._adapting.load(self.running, name, path, version)

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""
        await self._adapting.unload(self.running, name)

    async def put_to_sleep(self, api: Api) -> None:
        """Have SGLang free weights and cache, on the CPU as `inside.sleeping` does; it ends if anything runs."""
        await api.post("/release_memory_occupation", {"tags": None}, timeout_s=_MEMORY_TIMEOUT_S)

    async def wake_up(self, api: Api) -> None:
        """Have SGLang take the memory again."""
        await api.post("/resume_memory_occupation", {"tags": None}, timeout_s=_MEMORY_TIMEOUT_S)

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read one whole output with the parser `rollout.options.tool_parser` names. Any: JSON.

        Raises:
            CapabilityError: it names none, or one SGLang does not have.
        """
        running = self.running
        refuse_tool_calls(self._config.tool_parser, "qwen25 or llama3")
        body = {"text": text, "tools": [dict(tool) for tool in tools], "tool_call_parser": self._config.tool_parser}
        answer = await running.server.asked(lambda api: api.post("/parse_function_call", body))
        calls = [ToolCall(name=call["name"], arguments=call["parameters"]) for call in answer["calls"]]
        return ToolParse(content=answer["normal_text"], calls=calls)

    async def _scores(self, input_ids: Sequence[int], temperature: float, api: Api, version: int) -> list[float] | None:
        name = server_name(f"areal-score-{next(self._numbers)}")
        body = score_body(name, input_ids, temperature, f"score@{version}", self.running.state.policy)
        return scores_of(await api.post("/generate", body, timeout_s=None), input_ids)

    async def _load_adapter(self, api: Api, adapter: ServedAdapter) -> None:
        with completed(adapter.path, self.shapes) as folder:
            await _ADAPTERS.load(api, adapter, folder)
