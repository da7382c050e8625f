"""The inference contract over vLLM servers, and the optional abilities they have.

Knows: scoring, adapters, sleep, tool calls as vLLM offers them.
Does not know: everything all servers share (`areal_serving.engine`), payloads (`payloads`), routes (`dialect`).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.errors import CapabilityError, WeightSyncError
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.weights import Receipt, WeightSource
from areal_serving.adapters import ServedAdapter
from areal_serving.adapting import Adapting
from areal_serving.engine import ServedEngine
from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.images import check_images
from areal_serving.options import CacheOnUpdate
from areal_serving.requests import refuse_extras
from areal_serving.scoring import scores
from areal_torch.collective.rank_slot import SlotSource
from areal_vllm.config import VLLMConfig
from areal_vllm.dialect import GENERATE, VLLMDialect
from areal_vllm.direct import DirectTransfer
from areal_vllm.payloads import score_body, scores_of

_ADAPTER_TIMEOUT_S = 300.0
_NOT_THERE = 404
_ALREADY_THERE = "has already been loaded"


class VLLMEngine(ServedEngine):
    """One replica over one vLLM server.

    Example: engine = VLLMEngine(VLLMConfig()); await engine.start(InferenceSpec(model_path="/models/m"))
    """

    def __init__(self, config: VLLMConfig | None = None) -> None:
        self._config = config or VLLMConfig()
        super().__init__(VLLMDialect(self._config), self._config)
        self._adapting = Adapting(self._config.max_adapters, load=_load_adapter, unload=_unload_adapter)
        self._direct = DirectTransfer()
        self._numbers = itertools.count(1)

    def refuse(self, request: GenerationRequest) -> None:
        """Refuse extras nobody reads, and images that do not fit their placeholders."""
        refuse_extras(request, (IMAGES,), "vllm")
        check_images(request, self._require().model.image_token)

    async def revived(self, api: Api) -> None:
        """Load the adapters into a server that was started again."""
        await self._adapting.revive(api)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt; with an adapter, stamped with the adapter's version.

        Raises:
            PromptTooLong, BatchError, CapabilityError, GenerationFailed: as the contract says.
        """
        return await self._adapting.generated(request, super().generate)

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Stage one version, or with `rollout.options.direct` load it in place; the engine is paused for that.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: as the contract says.
        """
        if not (self._config.direct and isinstance(source, SlotSource)):
            return await super().receive_weights(source, version)
        running = self._require()
        api = await running.server.api()
        try:
            manifest = await asyncio.to_thread(lambda: source.manifest)
            return await self._direct.receive(api, source, manifest, model=running.model, served=self._state.version)
        except (ServerGone, ServerAnswer) as error:
            raise WeightSyncError(f"version {version} did not arrive whole", why=str(error)) from error
        finally:
            if self._direct.version is None:
                source.close()
                await self._make_whole(api)

    async def commit_weights(self, version: int) -> None:
        """Have the engine compute with what is held, or lies in it, from the next token on."""
        if self._direct.version != version:
            await super().commit_weights(version)
            return
        keep = self._config.kv_on_update is CacheOnUpdate.KEEP
        finish = functools.partial(self._direct.finish, version=version, keep_cache=keep)
        await self._work.alone(self._require().updates.change(version, finish))

    async def abort_weights(self) -> None:
        """Drop what is held. What lies in the engine's own layers costs it a restart. Idempotent."""
        await super().abort_weights()
        await self._make_whole(await self._api())

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        """Return log p(token t | tokens < t) for each token, 0.0 for the first.

        Raises:
            BatchError, PromptTooLong: of the tokens.
            GenerationFailed: the server was lost, or paused with `abort`, too often.
        """
        ask = functools.partial(self._scores, input_ids, temperature)
        return await scores(self._require(), self._state, input_ids, temperature, ask)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Load one version of an adapter; later requests that name it use it, those in flight keep theirs.

        Raises:
            ModelError: the folder holds no adapter of this model.
            VersionRegressed: this version, or a newer one, is loaded.
            CapabilityError: no place for it, or vLLM cannot use it.
        """
        await self._adapting.load(self._require(), name, path, version)

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""
        await self._adapting.unload(self._require(), name)

    async def sleep(self) -> None:
        """Free weights and cache. Only when paused. Idempotent.

        Raises:
            CapabilityError: `rollout.options.sleep` is off, or the device gives nothing back.
        """
        self._require()
        self._refuse_sleep()
        await self._require().server.asked(lambda api: api.post("/sleep", params={"level": "2"}))

    async def wake(self) -> None:
        """Take the memory again; weights must be received before generating."""
        self._require()
        self._refuse_sleep()
        await self._require().server.asked(lambda api: api.post("/wake_up"))

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read one whole output with the parser `rollout.options.tool_parser` names. Any: JSON.

        Raises:
            CapabilityError: it names none, or one vLLM does not have.
        """
        self._require()
        if not self._config.tool_parser:
            raise CapabilityError(
                "tool calls cannot be read",
                why="rollout.options.tool_parser names no parser",
                fix="name the one of the model, for example hermes or llama3_json",
            )
        answer = await self._asked(
            "areal_parse_tools", parser=self._config.tool_parser, text=text, tools=[dict(tool) for tool in tools]
        )
        return ToolParse(content=answer["content"], calls=[ToolCall(**call) for call in answer["calls"]])

    async def _make_whole(self, api: Api) -> None:
        """Replace a server whose model is open or half overwritten."""
        if self._direct.touched:
            self._direct = DirectTransfer()
            await self._require().server.replace(api)

    async def _scores(self, input_ids: Sequence[int], temperature: float, api: Api, version: int) -> list[float] | None:
        body = score_body(f"score-{next(self._numbers)}", input_ids, temperature)
        answer = await api.post(GENERATE, body, timeout_s=None)
        return None if answer["prompt_logprobs"] is None else scores_of(answer, input_ids)

    async def _asked(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Return the first worker's answer. Any: JSON."""
        body = {"method": method, "kwargs": arguments}
        answer = await self._require().server.asked(lambda api: api.post("/collective_rpc", body))
        found: dict[str, Any] = answer["results"][0]
        if found.get("problem"):
            raise CapabilityError(f"vLLM could not do {method.removeprefix('areal_')}", why=found["problem"])
        return found

    def _refuse_sleep(self) -> None:
        if not self._config.sleep:
            raise CapabilityError(
                "the server cannot sleep",
                why="rollout.options.sleep is off; on the CPU vLLM answers and frees nothing",
                fix="set it where the device is a GPU or an NPU",
            )


async def _load_adapter(api: Api, adapter: ServedAdapter) -> None:
    body = {"lora_name": adapter.served, "lora_path": str(adapter.path)}
    try:
        await api.post("/v1/load_lora_adapter", body, timeout_s=_ADAPTER_TIMEOUT_S)
    except ServerAnswer as error:
        if _ALREADY_THERE in error.text:  # asked twice, because the first answer was lost
            return
        raise CapabilityError(
            f"vLLM cannot use adapter {adapter.name!r} from {adapter.path}",
            why=error.text,
            fix="check its rank against rollout.options.max_adapter_rank, and its target modules",
        ) from error


async def _unload_adapter(api: Api, adapter: ServedAdapter) -> None:
    try:
        await api.post("/v1/unload_lora_adapter", {"lora_name": adapter.served})
    except ServerAnswer as error:
        if error.status != _NOT_THERE:
            raise
