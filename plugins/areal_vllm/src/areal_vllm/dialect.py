"""How a vLLM server is spoken to, 0.32 and 0.33.

Knows: routes, in which order they are called, what their answers mean.
Does not know: payloads (`payloads`), the command (`command`), when anything is asked (`areal_serving.engine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.errors import GenerationFailed, ModelError, WorkerError
from areal_core.contract.inference import PauseMode
from areal_serving.agreement import proved
from areal_serving.dialect import Call, Command, Gauges, Launch, Reply, ServerFacts
from areal_serving.http import Api, ServerAnswer
from areal_vllm.command import BASE_NAME, EXTENSION, command_of
from areal_vllm.config import VLLMConfig
from areal_vllm.metrics import gauges_of
from areal_vllm.payloads import body_of, id_inside, reply_of

GENERATE = "/inference/v1/generate"
FORGET_IMAGES = "/reset_encoder_cache"
"""Drops features of images in the scheduler and the workers; in one of them alone, the next such image ends vLLM."""
_HEALTH_TIMEOUT_S = 4.0
_MODEL_AT_FAULT = (
    "does not appear to have a file named",
    "are not supported for now",
    "does not recognize this architecture",
    "can't load the configuration",
    "cannot find any model weights",
    "error while deserializing header",
    "no safetensors file",
    "there is no module or parameter named",
    "were not initialized from checkpoint",
    "attempted to load weight",
    "is greater than the derived max_model_len",
    "can't load tokenizer",
)


class VLLMDialect:
    """The `Dialect` of vLLM servers. Beside its settings it keeps whether NaN was seen, and may lie in the cache."""

    def __init__(self, config: VLLMConfig) -> None:
        self._config = config
        self._saw_nan = False

    @property
    def name(self) -> str:
        """Return "vllm"."""
        return "vllm"

    def command(self, launch: Launch) -> Command:
        """Return how to start it: on loopback, with the key, with hooks for weights."""
        return command_of(launch, self._config)

    def blames_model(self, tail: str) -> bool:
        """Tell from its last lines whether a server ended for its model folder."""
        text = tail.lower()
        return any(words in text for words in _MODEL_AT_FAULT)

    async def facts(self, api: Api) -> ServerFacts:
        """Ask what it is, and have the workers install their hooks.

        Raises:
            ModelError: vLLM has no kernel for the model on this device, and would end at the first request.
            WorkerError: its workers lack them: it was started by hand without the plugin.
        """
        version = (await api.get("/version"))["version"]
        models = (await api.get("/v1/models"))["data"]
        served = next(model for model in models if model["parent"] is None)
        workers = await self._prepared(api, version)
        return ServerFacts(
            engine_version=version,
            context_length=served["max_model_len"],
            details={"runner": workers[0]["runner"], "num_workers": str(len(workers))},
        )

    async def healthy(self, api: Api) -> bool:
        """Ask whether it would serve."""
        await api.get("/health", timeout_s=_HEALTH_TIMEOUT_S)
        return True

    async def generate(self, api: Api, call: Call) -> Reply:
        """Generate; cancelling drops the connection, and vLLM ends the request.

        Raises:
            GenerationFailed: a log-prob is no number.
        """
        answer = await api.post(GENERATE, body_of(call), timeout_s=None)
        try:
            return reply_of(answer)
        except GenerationFailed:
            self._saw_nan = True
            raise

    async def abort(self, api: Api, server_ids: Sequence[str]) -> None:
        """End calls, each returns what it has. With no ids nothing is sent: vLLM would end every one."""
        if server_ids:
            await api.post("/abort_requests", {"request_ids": [id_inside(name) for name in server_ids]})

    async def pause(self, api: Api, mode: PauseMode) -> None:
        """Stop computing tokens before returning. The cache stays as it is: cache salts keep versions apart."""
        await api.post("/pause", params={"mode": mode.value, "clear_cache": "false"})

    async def resume(self, api: Api) -> None:
        """Compute again."""
        await api.post("/resume")

    async def prove(self, api: Api, folder: Path) -> Mapping[str, str]:
        """Have every worker read the staged weights; they do so beside generating.

        Raises:
            FingerprintMismatch: they cannot, or do not agree.
        """
        return await proved(lambda: rpc(api, "areal_prove", folder=str(folder)), "vLLM")

    async def load(self, api: Api, folder: Path, version: int, *, keep_cache: bool) -> None:
        """While paused: load in every worker, stamp, and drop the running requests' keys and values if asked to."""
        await rpc(api, "areal_load", folder=str(folder), **({"clean": True} if self._saw_nan else {}))
        self._saw_nan = False
        await api.post(FORGET_IMAGES)
        await self.stamp(api, version)
        if not keep_cache:
            await api.post("/reset_prefix_cache", params={"reset_running_requests": "true"})

    async def stamp(self, api: Api, version: int) -> None:
        """While paused: stamp `version` from the next token on."""
        await api.post("/update_weight_version", {"new_version": str(version)})

    async def gauges(self, api: Api) -> Gauges:
        """Read its counters."""
        return gauges_of(await api.text("/metrics"))

    async def _prepared(self, api: Api, version: str) -> list[dict[str, Any]]:
        try:
            workers = await rpc(api, "areal_prepare")
        except ServerAnswer as error:
            raise WorkerError(
                f"the vLLM server at {api.url} was started without the plugin's hooks",
                why=str(error),
                fix=f"start it with VLLM_SERVER_DEV_MODE=1 VLLM_USE_V2_MODEL_RUNNER=0 vllm serve MODEL "
                f"--served-model-name {BASE_NAME} --enable-scale-out --logprobs-mode processed_logprobs "
                f"--generation-config vllm --worker-extension-cls {EXTENSION}, with areal-vllm installed beside vLLM; "
                """on NPUs also --additional-config '{"weight_nz_mode": 0}'""",
            ) from error
        for worker in workers:
            if worker["unfit"]:
                raise ModelError("vLLM cannot serve the model on this device", why=worker["unfit"])
            if not (worker["sampling"] and worker["scoring"]):
                raise WorkerError(
                    f"vLLM {version} samples in a way the plugin does not know",
                    why=f"its model runner is {worker['runner']}",
                    fix="use the version `areal env create vllm` installs",
                )
        return workers


async def rpc(api: Api, method: str, **arguments: str | bool) -> list[dict[str, Any]]:
    """Call a method of every worker (`inside.worker`) and return their answers in the order of ranks. Any: JSON."""
    answer = await api.post("/collective_rpc", {"method": method, "kwargs": arguments}, timeout_s=None)
    results: list[dict[str, Any]] = answer["results"]
    return results
