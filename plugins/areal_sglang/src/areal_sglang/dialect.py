"""How an SGLang server is spoken to, version 0.5.23 with the hooks of `inside`.

Knows: routes, payloads and answers, and what each answer means.
Does not know: processes, pauses, versions, retries (`areal_serving.engine`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import define

from areal_core.contract.errors import CoverageError, ModelError, WeightSyncError, WorkerError
from areal_core.contract.inference import KV_USED_SHARE, NUM_PREEMPTED, PREFIX_HIT_SHARE, PauseMode
from areal_serving.agreement import proved
from areal_serving.dialect import Call, Command, Gauges, Launch, Reply, ServerFacts
from areal_serving.http import Api, ServerAnswer
from areal_sglang.asking import ask
from areal_sglang.command import SPARE_TOKENS, command
from areal_sglang.config import SGLangConfig
from areal_sglang.payloads import generate_body, reply_of, server_name
from areal_sglang.trace import Trace, told

_LOAD_TIMEOUT_S = 600.0
_FLUSHES = 3
_NO_COUNTS = (0.0,) * 6
"""What `inside.counts` has put there before the first step."""
_GO_ON = {"torch_empty_cache": False}  # else every pause throws the device's memory cache away
_STALE = "cache was not flushed"
_MODEL_FAULTS = (
    *("are not supported for now", "does not recognize this architecture", "Unrecognized model in"),
    *("Error while deserializing header", "SafetensorError", "size mismatch", "no safetensors weights found"),
    *("Cannot find any model weights", "is not a valid JSON file"),
)


@define(eq=False)
class SGLangDialect:
    """`options` decide how servers are started. Beside them it keeps which experts the servers' model has."""

    options: SGLangConfig = SGLangConfig()
    _trace: Trace | None = None

    @property
    def name(self) -> str:
        """Return "sglang"."""
        return "sglang"

    def command(self, launch: Launch) -> Command:
        """Return how to start a server."""
        return command(launch, self.options)

    def blames_model(self, tail: str) -> bool:
        """Tell whether a server that ended while it started blames its model folder."""
        return any(words in tail for words in _MODEL_FAULTS)

    async def healthy(self, api: Api) -> bool:
        """Ask /health, which answers also while paused."""
        try:
            await api.text("/health", timeout_s=5.0)
        except ServerAnswer:
            return False
        return True

    async def facts(self, api: Api) -> ServerFacts:
        """Ask what it is, and refuse a server that lacks the hooks: its log-probs and stamps would be others.

        Raises:
            WorkerError: hooks are missing.
            CoverageError: SGLang passes over tensors of this model.
        """
        info = await api.get("/server_info")
        try:
            ranks = await ask(api, "describe")
        except ServerAnswer as error:
            raise WorkerError(
                f"the SGLang server at {api.url} runs without areal's hooks",
                why="its log-probs would ignore top-p and top-k, and its version stamps be off by one token",
                fix="install areal-sglang beside it; start it with AREAL_SGLANG=1 and --sampling-backend pytorch",
            ) from error
        missing = sorted({name for rank in ranks for name in rank["missing"]})
        if missing:
            raise WorkerError(
                f"{len(missing)} hooks of areal are not in place, the first is {missing[0]}",
                why=f"SGLang {info['version']} differs from the tested version, or the hook failed: see its log",
                fix="areal env create sglang",
            )
        passed = sorted({word for rank in await ask(api, "loaded") for word in rank["problems"]})
        if passed:
            raise ModelError(f"SGLang does not load the whole model folder: {passed[0]}", why=f"{len(passed)} such")
        self._trace = told(ranks)
        return ServerFacts(
            engine_version=str(info["version"]),
            context_length=int(info["max_req_input_len"]) - SPARE_TOKENS + 6,
            details={
                "attention": str(info.get("attention_backend")),
                "sampling": str(info.get("sampling_backend")),
                "cache_tokens": str(info.get("max_total_num_tokens")),
            },
        )

    async def generate(self, api: Api, call: Call) -> Reply:
        """Generate; waits for as long as it takes."""
        body, trace = generate_body(call), self._trace
        answer = await api.post("/generate", {**body, **(trace.question(call) if trace else {})}, timeout_s=None)
        reply = reply_of(answer, call)
        return trace.read(reply, answer) if trace else reply

    async def abort(self, api: Api, server_ids: Sequence[str]) -> None:
        """End calls by name; SGLang answers 200 for names it does not know."""
        await asyncio.gather(*(api.post("/abort_request", {"rid": server_name(name)}) for name in server_ids))

    async def pause(self, api: Api, mode: PauseMode) -> None:
        """Freeze everything in place, or end everything.

        SGLang's own pause in mode abort looks for requests left only once a second; ending all of them is
        enough, as the engine sends no more and waits for those on their way. What was frozen before ends
        only when the scheduler goes on.
        """
        if mode is PauseMode.ABORT:
            await api.post("/abort_request", {"abort_all": True})
            await api.post("/continue_generation", _GO_ON)
            return
        await api.post("/pause_generation", {"mode": "in_place"})
        await ask(api, "describe")  # the pause is only sent to the scheduler; what follows it is answered after it

    async def resume(self, api: Api) -> None:
        """Go on; also where nothing was paused."""
        await api.post("/continue_generation", _GO_ON)

    async def prove(self, api: Api, folder: Path) -> Mapping[str, str]:
        """Have every rank's scheduler hash the staged file while it generates.

        Raises:
            FingerprintMismatch: a rank cannot read it, or two read different bytes.
        """
        return await proved(lambda: ask(api, f"prove:{folder}"), "SGLang")

    async def load(self, api: Api, folder: Path, version: int, *, keep_cache: bool) -> None:
        """Load the staged folder in place of the weights served.

        Raises:
            CoverageError: SGLang's loader left a parameter as it was, or passed over a tensor.
        """
        await api.post("/pause_generation", {"mode": "in_place" if keep_cache else "retract"})
        body = {"model_path": str(folder), "load_format": "auto", "weight_version": str(version)}
        try:
            await api.post(
                "/update_weights_from_disk", {**body, "flush_cache": not keep_cache}, timeout_s=_LOAD_TIMEOUT_S
            )
        except ServerAnswer as error:
            if error.status != 400 or _STALE not in error.text:
                raise
            await flush(api)
        problems = sorted({word for rank in await ask(api, "loaded") for word in rank["problems"]})
        if problems:
            raise CoverageError(
                f"SGLang did not load version {version} whole: {problems[0]}", why=f"{len(problems)} such"
            )

    async def stamp(self, api: Api, version: int) -> None:
        """With nothing in flight: stamp `version` from the next token on."""
        await api.post("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})

    async def gauges(self, api: Api) -> Gauges:
        """Read the snapshot the scheduler publishes at every step; answers also while it computes."""
        loads = (await api.get("/v1/loads", timeout_s=10.0))["loads"]
        counts = [sum(rank) for rank in zip(*(load["decode_moments"] or _NO_COUNTS for load in loads), strict=True)]
        prompt, found, preempted, generated = counts[:4]
        return Gauges(
            num_running=sum(load["num_running_reqs"] for load in loads),
            num_waiting=sum(load["num_waiting_reqs"] for load in loads),
            tokens_generated=int(generated),
            metrics={
                KV_USED_SHARE: max(float(load["token_usage"]) for load in loads),
                PREFIX_HIT_SHARE: found / max(prompt, 1.0),
                NUM_PREEMPTED: float(preempted),
                "tokens_per_s": float(sum(load["gen_throughput"] for load in loads)),
            },
        )


async def flush(api: Api) -> None:
    """Drop the prefix cache, which an update may leave stale although the new weights serve; what runs moves out."""
    for _ in range(_FLUSHES):
        await api.post("/pause_generation", {"mode": "retract"})
        try:
            await api.text("/flush_cache")  # its answer is prose; with a time to wait, it waits for what was moved out
        except ServerAnswer as error:
            last = error
        else:
            return
    raise WeightSyncError("the prefix cache of the old weights could not be dropped", why=str(last))
