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
from areal_core.contract.errors import CapabilityError, GenerationFailed, VersionRegressed, WeightSyncError
from areal_core.contract.inference import (
    IMAGES,
    Generation,
    GenerationRequest,
    InferenceSpec,
    PauseMode,
)
from areal_core.contract.optional import ToolCall, ToolParse
from areal_core.contract.train import EngineInfo
from areal_core.contract.weights import Receipt, WeightSource
from areal_serving.adapters import ServedAdapter
from areal_serving.adapting import Adapting
from areal_serving.engine import ServedEngine
from areal_serving.http import Api, ServerAnswer, ServerGone
from areal_serving.images import check_images
from areal_serving.options import CacheOnUpdate
from areal_serving.requests import refuse_extras
from areal_serving.scoring import scores
from areal_sglang.adapter import completed
from areal_sglang.config import SGLangConfig
from areal_sglang.dialect import SGLangDialect
from areal_sglang.direct import Direct, SlotWeightSource, stamp
from areal_sglang.manifest import MANIFEST
from areal_sglang.payloads import score_body, scores_of, server_name
from areal_torch.collective.rank_slot import SlotSource

_MEMORY_TIMEOUT_S = 300.0
_ADAPTER_TIMEOUT_S = 300.0
_ALREADY_THERE = "is already loaded"
_NOT_THERE = "does not exist"
_EXTRAS = (IMAGES,)


class SGLangEngine(ServedEngine):
    """One replica over one SGLang server.

    Example: engine = SGLangEngine(SGLangConfig()); await engine.start(InferenceSpec(model_path="/models/m"))
    """

    def __init__(self, config: SGLangConfig | None = None) -> None:
        self._config = config or SGLangConfig()
        super().__init__(SGLangDialect(self._config), self._config)
        self._adapting = Adapting(self._config.max_adapters, load=self._load_adapter, unload=_unload_adapter)
        self._asleep = False
        self._numbers = itertools.count(1)
        self._direct = Direct(1, "cpu")

    def refuse(self, request: GenerationRequest) -> None:
        """Refuse what the manifest does not claim."""
        refuse_extras(request, _EXTRAS, "sglang")
        for word in asked_of(request):
            claim = MANIFEST.claims.get(word)
            if claim is None or not claim.claimed:
                raise CapabilityError(
                    f"request {request.request_id!r} asks for {word}",
                    why="not claimed" if claim is None else claim.why,
                    fix="use an inference backend that claims it: areal backends --role infer",
                )
        check_images(request, self._require().model.image_token)

    async def revived(self, api: Api) -> None:
        """Load the adapters into a server that was started again."""
        await self._adapting.revive(api)

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Start a server on the folder, or find the one that runs, as version 0."""
        self._direct = Direct(spec.layout.get("t", 1), spec.device.partition(":")[0])
        return await super().start(spec)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate for one prompt; with an adapter, stamped with the adapter's version.

        Raises:
            PromptTooLong, BatchError, CapabilityError, GenerationFailed: as the contract says.
        """
        return await self._adapting.generated(request, super().generate)

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Stage one version; with `direct`, and a source that has slots, load it into a paused server as it comes.

        Raises:
            CoverageError, VersionRegressed, WeightSyncError: what serves is untouched, or the server is started again.
        """
        if not self._config.direct or not isinstance(source, SlotSource):
            return await super().receive_weights(source, version)
        try:
            return await self._work.alone(self._take(source, version))
        finally:
            source.close()

    async def commit_weights(self, version: int) -> None:
        """Have the server load what is held, or stamp what it took, between two tokens.

        Raises:
            WeightSyncError: another version, or none, is held; or the server that took it is gone.
        """
        taken = self._direct.taken(version)
        if taken is None:
            await super().commit_weights(version)
            return
        keep = self._config.kv_on_update is CacheOnUpdate.KEEP
        stamped = functools.partial(stamp, taken=taken, keep_cache=keep)
        await self._work.alone(self._require().updates.change(version, stamped))

    async def abort_weights(self) -> None:
        """Drop the held version, also one that is still arriving. Idempotent."""
        await super().abort_weights()
        await self._direct.abort(self._require().server)

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
            CapabilityError: no place for it, or SGLang cannot use it.
        """
        await self._adapting.load(self._require(), name, path, version)

    async def unload_adapter(self, name: str) -> None:
        """Drop every version of an adapter. Idempotent."""
        await self._adapting.unload(self._require(), name)

    async def sleep(self) -> None:
        """Free weights and cache. Only when paused with nothing in flight: SGLang ends if anything runs. Idempotent.

        Raises:
            CapabilityError: `rollout.options.sleep` is off.
            GenerationFailed: requests are in flight, or the engine is not paused.
        """
        running = self._require()
        self._refuse_sleep()
        if self._asleep:
            return
        if self._state.paused is not PauseMode.ABORT or running.calls.num_running:
            raise GenerationFailed(
                "the server cannot give its memory back while requests are in flight",
                why=f"paused: {self._state.paused}; in flight: {running.calls.num_running}",
                fix="pause with mode abort first",
            )
        await running.server.asked(
            lambda api: api.post("/release_memory_occupation", {"tags": None}, timeout_s=_MEMORY_TIMEOUT_S)
        )
        self._asleep = True

    async def wake(self) -> None:
        """Take the memory again; weights must be received before generating. Idempotent."""
        running = self._require()
        self._refuse_sleep()
        if not self._asleep:
            return
        await running.server.asked(
            lambda api: api.post("/resume_memory_occupation", {"tags": None}, timeout_s=_MEMORY_TIMEOUT_S)
        )
        self._asleep = False

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read one whole output with the parser `rollout.options.tool_parser` names. Any: JSON.

        Raises:
            CapabilityError: it names none, or one SGLang does not have.
        """
        running = self._require()
        if not self._config.tool_parser:
            raise CapabilityError(
                "tool calls cannot be read",
                why="rollout.options.tool_parser names no parser",
                fix="name the one of the model, for example qwen25 or llama3",
            )
        body = {"text": text, "tools": [dict(tool) for tool in tools], "tool_call_parser": self._config.tool_parser}
        answer = await running.server.asked(lambda api: api.post("/parse_function_call", body))
        calls = [ToolCall(name=call["name"], arguments=call["parameters"]) for call in answer["calls"]]
        return ToolParse(content=answer["normal_text"], calls=calls)

    async def _take(self, source: SlotWeightSource, version: int) -> Receipt:
        running, served = self._require(), self._state.version
        if version <= served:
            raise VersionRegressed(
                f"weights of version {version} were offered", why=f"version {served} is serving already"
            )
        if self._state.paused is None:
            raise WeightSyncError("weights arrive in place", why="the engine is not paused", fix="pause it first")
        try:
            return await self._direct.receive(running.server, source, version, running.model.check)
        except (ServerAnswer, ServerGone) as error:
            raise WeightSyncError(f"SGLang did not take version {version}", why=str(error)) from error

    async def _scores(self, input_ids: Sequence[int], temperature: float, api: Api, version: int) -> list[float] | None:
        name = server_name(f"areal-score-{next(self._numbers)}")
        body = score_body(name, input_ids, temperature, f"score@{version}")
        return scores_of(await api.post("/generate", body, timeout_s=None), input_ids)

    def _refuse_sleep(self) -> None:
        if not self._config.sleep:
            raise CapabilityError(
                "the server cannot sleep",
                why="rollout.options.sleep is off; on the CPU SGLang answers and frees nothing",
                fix="set it on a CUDA device",
            )

    async def _load_adapter(self, api: Api, adapter: ServedAdapter) -> None:
        with completed(adapter.path, self._require().model.shapes) as folder:
            body = {"lora_name": adapter.served, "lora_path": str(folder)}
            try:
                await api.post("/load_lora_adapter", body, timeout_s=_ADAPTER_TIMEOUT_S)
            except ServerAnswer as error:
                if _ALREADY_THERE in error.text:  # asked twice, because the first answer was lost
                    return
                raise CapabilityError(
                    f"SGLang cannot use adapter {adapter.name!r} from {adapter.path}",
                    why=error.text,
                    fix="check its rank against rollout.options.max_adapter_rank, and its target modules",
                ) from error


async def _unload_adapter(api: Api, adapter: ServedAdapter) -> None:
    try:
        await api.post("/unload_lora_adapter", {"lora_name": adapter.served})
    except ServerAnswer as error:
        if _NOT_THERE not in error.text:
            raise
