"""The inference contract over vLLM servers, and the optional abilities they have.

Knows: scoring, adapters, sleep, tool calls as vLLM offers them.
Does not know: everything all servers share (`areal_core.serving.engine`), bodies (`bodies`), routes (`dialect`).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from areal_core.contract.errors import BatchError, CapabilityError, GenerationFailed, WeightSyncError
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams, VersionSpan
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.serving.adapter_folder import check_adapter
from areal_core.serving.adapters import Adapters, ServedAdapter
from areal_core.serving.engine import ServedEngine
from areal_core.serving.http import Api, ServerAnswer, ServerGone
from areal_core.serving.options import CacheOnUpdate
from areal_core.serving.requests import check_request, refuse_extras
from areal_core.serving.slots import Interrupted
from areal_core.weights.seat import SeatedSource
from areal_vllm.bodies import score_body, scores_of
from areal_vllm.config import VLLMConfig
from areal_vllm.dialect import GENERATE, VLLMDialect
from areal_vllm.direct import DirectTransfer

_SCORE_ATTEMPTS = 8
_ONE_TOKEN = SamplingParams(max_new_tokens=1)
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
        self._adapters = Adapters(self._config.max_adapters)
        self._direct = DirectTransfer()
        self._adapting = asyncio.Lock()
        self._numbers = itertools.count(1)

    @property
    def serving(self) -> Api:
        """Return the server; for the conformance suite, which looks behind the contract."""
        api = self._require().server.serving
        assert api is not None, "there is a server once the engine is started"
        return api

    def refuse(self, request: GenerationRequest) -> None:
        """Refuse extras nobody reads."""
        refuse_extras(request, (), "vllm")

    async def revived(self, api: Api) -> None:
        """Load the adapters into a server that was started again."""
        for adapter in self._adapters:
            await _load_adapter(api, adapter)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt; with an adapter, stamped with the adapter's version.

        Raises:
            PromptTooLong, BatchError, CapabilityError, GenerationFailed: as the contract says.
        """
        if not request.adapter:
            return await super().generate(request)
        adapter = self._adapters.find(request.adapter)
        self._adapters.begin(adapter)
        try:
            made = await super().generate(evolve(request, adapter=adapter.served))
        finally:
            self._adapters.end(adapter)
        count = len(made.output_ids)
        spans = (VersionSpan(start=0, stop=count, version=adapter.version),) if count else ()
        return evolve(made, version_spans=spans)

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Stage one version, or with `rollout.options.direct` load it in place; the engine is paused for that.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: as the contract says.
        """
        if not (self._config.direct and isinstance(source, SeatedSource)):
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
        running = self._require()
        if temperature <= 0:
            raise BatchError(f"temperature is {temperature}, scores need a positive one")
        check_request(
            GenerationRequest(request_id=RequestId("score"), input_ids=input_ids, sampling=_ONE_TOKEN),
            vocabulary=running.model.vocab_size,
            context_length=running.facts.context_length,
        )
        if len(input_ids) == 1:
            return [0.0]
        for _ in range(_SCORE_ATTEMPTS):
            found = await self._scored(input_ids, temperature)
            if found is not None:
                return found
        raise GenerationFailed("scores were interrupted too often", fix="ask again")

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Load one version of an adapter; later requests that name it use it, those in flight keep theirs.

        Raises:
            ModelError: the folder holds no adapter of this model.
            VersionRegressed: this version, or a newer one, is loaded.
            CapabilityError: no place for it, or vLLM cannot use it.
        """
        model = self._require().model
        async with self._adapting:
            adapter = self._adapters.admit(name, path, version)
            await asyncio.to_thread(check_adapter, path, model.shapes)
            await self._require().server.asked(lambda api: _load_adapter(api, adapter))
            self._adapters.loaded(adapter)
            await self._drop_unused()

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""
        self._require()
        async with self._adapting:
            self._adapters.forget(name)
            await self._drop_unused()

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

    async def _scored(self, input_ids: Sequence[int], temperature: float) -> list[float] | None:
        """Return the scores, or None if a pause or an update came between."""
        running = self._require()
        try:
            await running.slots.acquire()
        except Interrupted:
            return None
        try:
            version = self._state.version
            body = score_body(f"score-{next(self._numbers)}", input_ids, temperature)
            answer = await running.server.asked(lambda api: api.post(GENERATE, body, timeout_s=None))
        finally:
            running.slots.release()
        whole = answer["prompt_logprobs"] is not None and version == self._state.version
        return scores_of(answer, input_ids) if whole else None

    async def _asked(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Return the first worker's answer. Any: JSON."""
        body = {"method": method, "kwargs": arguments}
        answer = await self._require().server.asked(lambda api: api.post("/collective_rpc", body))
        found: dict[str, Any] = answer["results"][0]
        if found.get("problem"):
            raise CapabilityError(f"vLLM could not do {method.removeprefix('areal_')}", why=found["problem"])
        return found

    async def _drop_unused(self) -> None:
        for adapter in self._adapters.unused():
            await self._require().server.asked(functools.partial(_unload_adapter, adapter=adapter))

    def _refuse_sleep(self) -> None:
        if not self._config.sleep:
            raise CapabilityError(
                "the server cannot sleep",
                why="rollout.options.sleep is off; on the CPU vLLM answers and frees nothing",
                fix="set it on a CUDA device",
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
