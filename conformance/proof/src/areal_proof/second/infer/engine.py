"""The second inference engine: requests take turns, each turn one whole forward, in the event loop.

Knows: which calls are allowed when, whose turn it is, and what serves: weights, version, adapters.
Does not know: how logits are computed (`forward`), drawn from (`sampling`) or when an output ends (`requests`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.errors import (
    ArealError,
    CapabilityError,
    GenerationFailed,
    ModelError,
    VersionRegressed,
    WeightSyncError,
)
from areal_core.contract.inference import (
    PREFIX_HIT_SHARE,
    EngineStatus,
    Generation,
    GenerationRequest,
    InferenceSpec,
    PauseMode,
    ReplicaPart,
)
from areal_core.contract.optional import ToolParse
from areal_core.contract.train import EngineInfo, LoraSpec
from areal_core.contract.weights import Receipt, WeightManifest, WeightSource
from areal_proof.second.infer.adapters import PREFIX, Adapter, adapter_needs, deltas_of, loaded_adapter, read_adapter
from areal_proof.second.infer.config import SecondInferenceConfig
from areal_proof.second.infer.forward import Delta, forward
from areal_proof.second.infer.hosts import Following, Leading
from areal_proof.second.infer.loading import Loaded, load
from areal_proof.second.infer.requests import Slot, Token, check_request
from areal_proof.second.infer.sampling import distribution, draw, penalised, uniform
from areal_proof.second.infer.scoring import scores
from areal_proof.second.infer.stage import IncomingWeights
from areal_proof.second.infer.structure import StructuredText
from areal_proof.second.infer.tools import parse

_LOOK_S = 0.01


class SecondInferenceEngine:
    """Plain and slow: what a request gets depends on its own tokens and the weights of the moment alone."""

    def __init__(self, config: SecondInferenceConfig | None = None, *, clock: Callable[[], float] = time.perf_counter):
        self._config = config or SecondInferenceConfig()
        self._clock = clock
        self._loaded: Loaded | None = None
        self.weights: Mapping[str, Tensor] | None = None
        self.version = 0
        self.staged: IncomingWeights | None = None
        self._receiving: object | None = None
        self.adapters: dict[str, Adapter] = {}
        self.policy: Mapping[str, Delta] | None = None
        self.prefixes: dict[tuple[object, ...], tuple[Tensor, Tensor | None]] = {}
        self.running: deque[Slot] = deque()
        self.waiting: deque[Slot] = deque()
        self.paused, self.asleep, self.closed, self.turn = False, False, False, asyncio.Event()
        self._server: asyncio.Task[None] | None = None
        self.leading: Leading | None = None
        self.following: Following | None = None
        self.num_tokens, self._busy_s, self._num_hits, self._num_prompts = 0, 0.0, 0, 0

    async def start(self, spec: InferenceSpec) -> EngineInfo:
        """Read the folder and begin to take turns, as version 0."""
        loaded = await asyncio.to_thread(load, spec)
        self._loaded, self.weights = loaded, loaded.weights
        if spec.lora is not None and spec.lora.path:
            self.policy = self.begun(Path(spec.lora.path), spec.lora, loaded)
        if spec.part is not None:
            await self._meet(spec.part, loaded)
        self._server = asyncio.create_task(self._serve())
        return EngineInfo(
            engine="second",
            engine_version=f"torch {torch.__version__}",
            device=str(loaded.needs.device),
            num_parameters=sum(tensor.numel() for tensor in loaded.weights.values()),
            context_length=loaded.context,
        )

    async def _meet(self, part: ReplicaPart, loaded: Loaded) -> None:
        """Come together with the other parts of the replica."""
        if not part.leads:
            self.following = Following(part, loaded.cut, self.weights_of)
            return
        if self.closed:  # while the model was loaded
            raise _closed()
        self.leading = Leading(part)
        try:
            await asyncio.to_thread(self.leading.meet)
        finally:
            if self.closed:
                raise _closed()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Take a slot and wait for the whole output; cancelling the call gives the slot up."""
        slot = self.slot_for(request)
        self.waiting.append(slot)
        self._wake_server()
        try:
            return await slot.caller
        finally:
            self.leave(slot)

    async def pause(self, mode: PauseMode) -> None:
        """Give no more turns; `abort` returns every request with what it has."""
        self.require()
        self.require_lead()
        self.paused = True
        self.turn.clear()
        if PauseMode(mode) is PauseMode.ABORT:
            for slot in [*self.running, *self.waiting]:
                self.finish(slot, StopReason.ABORTED)

    async def resume(self) -> None:
        """Give turns again."""
        self.require()
        self.require_weights()
        self.paused = False
        self._wake_server()

    async def receive_weights(self, source: WeightSource, version: int) -> Receipt:
        """Take one version in while turns go on; the source is read in a thread, bucket by bucket."""
        self.require()
        began, mine = self._clock(), object()
        self.staged, self._receiving = None, mine
        try:
            self._check_version(version)
            manifest = await asyncio.to_thread(lambda: source.manifest)
            stage = self.new_stage(manifest, version)
            buckets = iter(source.buckets())
            while (bucket := await asyncio.to_thread(next, buckets, None)) is not None:
                self._check_wanted(mine, version)
                stage.take(bucket)
            self._check_wanted(mine, version)
            receipt = stage.receipt(self._clock() - began)
            await self._held_everywhere(mine, version)
        finally:
            source.close()
        self.staged = stage
        return receipt

    async def _held_everywhere(self, mine: object, version: int) -> None:
        """Wait until the other parts have a version too; whoever transfers it has a deadline, and aborts then."""
        while self.leading is not None and not self.leading.hold(version):
            await asyncio.sleep(_LOOK_S)
            self._check_wanted(mine, version)

    async def commit_weights(self, version: int) -> None:
        """Serve the staged version from the next turn on."""
        self.require()
        staged = self.staged
        if staged is None and version == self.version:
            return
        if staged is None or staged.manifest.version != version:
            raise WeightSyncError(
                f"version {version} cannot be committed",
                why="nothing is staged" if staged is None else f"version {staged.manifest.version} is staged",
                fix="call receive_weights for it first",
            )
        self.serve(staged)
        self.staged = None
        self.prefixes.clear()

    def serve(self, staged: IncomingWeights) -> None:
        loaded = self.require()
        lora = loaded.spec.lora
        if lora is None:
            self.weights = staged.tensors
        else:
            self.policy = deltas_of(staged.tensors, lora)
            self.weights = loaded.weights if self.weights is None else self.weights  # it slept
        self.version = staged.manifest.version
        if self.leading is not None:
            self.leading.version = self.version

    def weights_of(self, version: int) -> Mapping[str, Tensor] | None:
        """Return what this part has of a version, None if it has nothing; called in its own thread."""
        staged, held = self.staged, (self.version, self.weights)
        if staged is not None and staged.manifest.version == version:
            return staged.tensors
        return held[1] if held[0] == version else None

    def begun(self, folder: Path, lora: LoraSpec, loaded: Loaded) -> Mapping[str, Delta]:
        """Return the adapter that version 0 is; the spec tells its layers, rank and alpha again."""
        deltas = read_adapter(folder, 0, loaded.needs).deltas
        wanted = {name.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for name in adapter_needs(loaded.needs, lora).shapes}
        if wanted != {*deltas}:
            raise ModelError(
                f"the adapter in {str(folder)!r} is on {len(deltas)} layers, the spec's on {len(wanted)}",
                why="the next version has to be one of the same layers",
                fix="give the targets that are in its adapter_config.json",
            )
        return {layer: attrs.evolve(delta, scale=lora.alpha / lora.rank) for layer, delta in deltas.items()}

    async def abort_weights(self) -> None:
        """Drop what is staged, and what is still coming."""
        self.require()
        self.staged = self._receiving = None

    async def status(self) -> EngineStatus:
        """Return a snapshot."""
        self.require()
        return EngineStatus(
            version=self.version,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            paused=self.paused,
            tokens_generated=self.num_tokens,
            busy_s=self._busy_s,
            metrics={PREFIX_HIT_SHARE: self._num_hits / max(1, self._num_prompts), "asleep": float(self.asleep)},
        )

    async def close(self) -> None:
        """Fail every call that waits and end the server. Idempotent."""
        self.closed, self._receiving = True, None
        for company in (self.leading, self.following):
            if company is not None:
                await asyncio.to_thread(company.close)
        for slot in [*self.running, *self.waiting]:
            if not slot.caller.done():
                slot.caller.set_exception(_closed())
        self.running.clear()
        self.waiting.clear()
        server, self._server = self._server, None
        if server is not None:
            server.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await server
        self.weights = self.staged = None

    async def sleep(self) -> None:
        """Free weights and kept prefixes. Idempotent."""
        self.require()
        if not self.paused:
            raise GenerationFailed("the engine cannot sleep", why="it is not paused", fix="call pause first")
        self.asleep, self.weights, self.staged, self._receiving = True, None, None, None
        self.prefixes.clear()

    async def wake(self) -> None:
        """Be ready to receive weights. Idempotent; still paused."""
        self.require()
        self.asleep = False

    async def score(self, input_ids: Sequence[int], temperature: float) -> Sequence[float]:
        """Return log p(token t | tokens < t) at a temperature, 0.0 for the first token."""
        return scores(self.require(), self.require_weights(), list(input_ids), temperature, self.policy, self.leading)

    async def load_adapter(self, name: str, path: Path, version: int) -> None:
        """Serve this version of an adapter to requests that come from now on."""
        loaded, old = self.require(), self.adapters.get(name)
        if old is not None and version <= old.version:
            raise VersionRegressed(f"version {version} of {name!r} was offered", why=f"{old.version} is loaded")
        self.adapters[name] = read_adapter(Path(path), version, loaded.needs)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that have it go on with it. Idempotent."""
        self.require()
        self.adapters.pop(name, None)

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read the calls an output holds, with the parser of the options."""
        return parse(self._config.tool_parser, text)

    def weights_in_use(self) -> Mapping[str, Tensor]:
        """Return the tensors the next token is computed with; for the conformance adapter."""
        return dict(self.require_weights())

    async def _serve(self) -> None:
        """Give each running request one turn after another."""
        places = self.require().spec.max_concurrent
        while True:
            await self.turn.wait()
            while self.waiting and len(self.running) < places:
                slot = self.waiting.popleft()
                slot.admitted_s = self._clock()
                self.running.append(slot)
            if not self.running:
                self.turn.clear()
                continue
            slot = self.running[0]
            self.running.rotate(-1)
            began = self._clock()
            try:
                self.advance(slot)
            except Exception as error:  # whatever a forward raises ends this request, never the others
                self.fail(slot, error)
            self._busy_s += self._clock() - began
            await asyncio.sleep(0)

    def advance(self, slot: Slot) -> None:
        """Compute one token of one request."""
        logits, routes = self.next_logits(slot)
        logits = self.penalised(slot, logits)
        logprobs = self.distribution(slot, logits)
        token = self.choose(slot, logprobs)
        logprob = self.reported(slot, token, logits, logprobs)
        if not logprob > float("-inf"):
            raise GenerationFailed(
                f"version {self.version} of the policy gave log-prob {logprob}",
                why="its weights, or the activations they lead to, hold NaN or infinity",
                fix="look at the trainer's loss and gradient norm before that version",
            )
        self.num_tokens += 1
        slot.first_s = self._clock() if slot.first_s is None else slot.first_s
        slot.output.append(Token(id=token, logprob=logprob, version=self.stamp(slot), routes=routes))
        reason = self.end(slot)
        if reason is not None:
            self.finish(slot, reason)

    def penalised(self, slot: Slot, logits: Tensor) -> Tensor:
        return penalised(logits, slot.request.sampling, slot.prompt, slot.produced)

    def distribution(self, slot: Slot, logits: Tensor) -> Tensor:
        return distribution(logits, slot.request.sampling, slot.forbidden)

    def choose(self, slot: Slot, logprobs: Tensor) -> int:
        if slot.request.sampling.temperature == 0:
            return int(logprobs.argmax())
        return draw(logprobs, self.number(slot))

    def reported(self, slot: Slot, token: int, logits: Tensor, logprobs: Tensor) -> float:
        return float(logprobs[token])

    def number(self, slot: Slot) -> float:
        return uniform(slot.seed, slot.index)

    def end(self, slot: Slot) -> StopReason | None:
        return slot.end()

    def stamp(self, slot: Slot) -> int:
        """Return the version that computes the next token: the adapter's where there is one."""
        return self.version if slot.adapter is None else slot.adapter.version

    def next_logits(self, slot: Slot) -> tuple[Tensor, Tensor | None]:
        """Return logits [V] after a request's last token, and the experts that token went through."""
        loaded, weights = self.require(), self.require_weights()
        key = self.prefix_key(slot)
        if not slot.output:
            self._num_prompts += len(slot.request.input_ids)
        if not slot.output and key in self.prefixes:
            self._num_hits += len(slot.request.input_ids)
            return self.prefixes[key]
        deltas = self.deltas_for(slot)
        computed = forward(loaded.shape, weights, slot.ids, deltas, slot.pictures, cut=loaded.cut, others=self.leading)
        found = (computed.logits[-1], None if computed.routes is None else computed.routes[-1])
        if not slot.output:
            self.prefixes[key] = found
            while len(self.prefixes) > self._config.prefix_entries:
                del self.prefixes[next(iter(self.prefixes))]
        return found

    def prefix_key(self, slot: Slot) -> tuple[object, ...]:
        return (self.version, slot.adapter, *slot.shown)

    def slot_for(self, request: GenerationRequest) -> Slot:
        """Check a request and prepare its slot."""
        loaded, _ = self.require(), self.require_weights()
        pictures = check_request(request, loaded)
        sampling = request.sampling
        own = () if sampling.ignore_eos else loaded.end_ids
        return Slot(
            request=request,
            caller=asyncio.get_running_loop().create_future(),
            seed=f"{loaded.spec.seed}/{self.version}/{request.request_id}" if sampling.seed is None else sampling.seed,
            limit=min(sampling.max_new_tokens, loaded.context - len(request.input_ids)),
            end_ids=tuple(dict.fromkeys((*own, *sampling.stop_token_ids))),
            tokenizer=loaded.tokenizer,
            adapter=self.adapter_for(request.adapter),
            text=self.text_for(loaded, request),
            pictures=pictures,
            arrived_s=self._clock(),
        )

    def text_for(self, loaded: Loaded, request: GenerationRequest) -> StructuredText | None:
        return None if request.structure is None else StructuredText(request.structure, loaded)

    def adapter_for(self, name: str) -> Adapter | None:
        return loaded_adapter(self.adapters, name) if name else None

    def deltas_for(self, slot: Slot) -> Mapping[str, Delta] | None:
        return self.policy if slot.adapter is None else slot.deltas

    def finish(self, slot: Slot, reason: StopReason) -> None:
        self.leave(slot)
        if not slot.caller.done():
            slot.caller.set_result(slot.result(self._clock(), reason))

    def fail(self, slot: Slot, cause: Exception) -> None:
        self.leave(slot)
        error = cause
        if not isinstance(cause, ArealError):
            error = GenerationFailed(
                f"a turn of {slot.request.request_id!r} raised {type(cause).__name__}", why=str(cause)
            )
            error.__cause__ = cause
        if not slot.caller.done():
            slot.caller.set_exception(error)

    def leave(self, slot: Slot) -> None:
        for queue in (self.running, self.waiting):
            with contextlib.suppress(ValueError):
                queue.remove(slot)

    def _wake_server(self) -> None:
        if not self.paused:
            self.turn.set()

    def _check_version(self, version: int) -> None:
        if self.asleep:
            raise WeightSyncError("the engine sleeps", why="it has no memory for weights", fix="call wake first")
        if version <= self.version:
            raise VersionRegressed(f"version {version} was offered", why=f"version {self.version} is serving already")

    def new_stage(self, manifest: WeightManifest, version: int) -> IncomingWeights:
        if manifest.version != version:
            raise WeightSyncError(f"version {version} was announced", why=f"the source holds {manifest.version}")
        loaded = self.require()
        lora = loaded.spec.lora
        return IncomingWeights(
            needs=loaded.needs if lora is None else adapter_needs(loaded.needs, lora), manifest=manifest
        )

    def _check_wanted(self, mine: object, version: int) -> None:
        if self._receiving is not mine:
            raise WeightSyncError(f"receiving version {version} was aborted")

    def require(self) -> Loaded:
        if self.closed:
            raise _closed()
        if self._loaded is None:
            raise GenerationFailed("the engine was not started", fix="call start first")
        for company in (self.leading, self.following):
            if company is not None:
                company.check()
        return self._loaded

    def require_lead(self) -> None:
        if self.following is not None:
            raise CapabilityError("this part of the replica takes no requests", why="another one leads it")

    def require_weights(self) -> Mapping[str, Tensor]:
        self.require_lead()
        if self.weights is None:
            raise GenerationFailed(
                "the engine has no weights",
                why="it slept, and none were committed since",
                fix="call wake, then send and commit weights",
            )
        return self.weights


def _closed() -> GenerationFailed:
    return GenerationFailed("the engine is closed", why="close() was called", fix="send the request to another replica")
