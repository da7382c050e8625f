"""What a check of an inference engine is given: tiny models, engines kept between checks, updates, the truth.

Knows: how an engine is started, brought to rest and kept; which pause an update of it needs.
Does not know: any check, or how an engine computes.

The tiny models cannot end by themselves: no token but the end token has a chance to be end token (`model`), so a
long request is long on every engine, whether or not it can be told to ignore the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import torch
from attrs import define
from torch import Tensor
from transformers import AutoTokenizer

from areal_conformance.adapter import Tolerance, Witness
from areal_conformance.benches.base import Bench
from areal_conformance.benches.infer_truth import Oracle
from areal_conformance.benches.models import make_endless, one_thread, quiet, tiny_model
from areal_conformance.outcome import Inconclusive, Violation
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import (
    Generation,
    GenerationRequest,
    InferenceEngine,
    InferenceSpec,
    PauseMode,
    SamplingParams,
)
from areal_core.contract.train import LoraSpec
from areal_core.contract.weights import Receipt, WeightSource
from areal_core.contract.workflow import Tokenizer
from areal_torch.testing.serving import FolderWeights

T = TypeVar("T")

KEPT_ENGINES = 2
KEPT_WHERE_SLOW = 4
WAIT_S = 5.0
"""Times the adapter's patience: the most any single condition is waited for."""
POLLS_PER_S = 600
"""On a machine too busy to look that often, a wait is as much longer."""
QUIET_TURNS = 64
POLL_S = 0.001
ROOM = 8192
LONG = ROOM - 512
"""Tokens no check waits for: what asks for them is still running whenever the check looks."""
COARSE = 0.15
"""Absolute gap allowed between an engine that has no float32 and the float32 truth."""


@define(kw_only=True)
class _Kept:
    """An engine at rest, its specification and the folder whose weights it serves."""

    engine: InferenceEngine
    key: str
    spec: InferenceSpec

    @property
    def model(self) -> Path:
        return Path(self.spec.model_path)


class InferBench(Bench):
    """Engines, models and truths of one target. Everything is used in the session's one event loop."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self._models: dict[str, Path] = {}
        self._weights: dict[Path, FolderWeights] = {}
        self._oracles: dict[tuple[Path, torch.dtype], Oracle] = {}
        self._tokenizers: dict[Path, Tokenizer] = {}
        self._kept: list[_Kept] = []
        self._open: list[InferenceEngine] = []
        self._calls: set[asyncio.Task[Any]] = set()

    # models and the truth

    def model(self, *, ends: bool = False, **arguments: Any) -> Path:
        """Return the folder of a tiny model, made once; `arguments` are those of `make_tiny_model`.

        Unless `ends`, its end token (id 1) has no chance to be generated, nor has a placeholder of images, which
        belongs in prompts. Untied by default, so that `FolderWeights.tell` works; room for 8192 tokens.
        """
        wanted = {"kind": self.target.adapter.models[0], "hidden": 32, "tied": False, "max_position": ROOM, **arguments}
        wanted |= self.target.adapter.tiny
        key = f"{ends} {sorted(wanted.items())}"
        if key not in self._models:
            path = tiny_model(self.shared_folder / f"model-{len(self._models):02d}", **wanted)
            if not ends:
                make_endless(path)
            self._models[key] = path
        return self._models[key]

    def weights(self, model: Path | None = None) -> FolderWeights:
        """Return the tensors of a model folder in the dtype served, ready to be offered; read once, never written."""
        folder = model or self.model()
        if folder not in self._weights:
            quiet()
            self._weights[folder] = FolderWeights.of(folder, getattr(torch, self.dtype))
        return self._weights[folder]

    def oracle(self, model: Path | None = None, dtype: torch.dtype = torch.float32) -> Oracle:
        """Return the truth of a model folder, in float32 or float64; it takes other weights of the same shape too."""
        key = model or self.model(), dtype
        if key not in self._oracles:
            quiet()
            self._oracles[key] = Oracle(*key)
        return self._oracles[key]

    def tokenizer(self, model: Path | None = None) -> Tokenizer:
        """Return the tokenizer of a model folder."""
        folder = model or self.model()
        if folder not in self._tokenizers:
            self._tokenizers[folder] = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return self._tokenizers[folder]

    @property
    def dtype(self) -> str:
        """Return the dtype engines are started in, by name."""
        return self.target.adapter.dtypes[0]

    def tolerance(self, *, atol: float = 0.0, rtol: float = 0.0) -> Tolerance:
        """Return as every bench does; an engine that has no float32 is judged as coarsely as its dtype is."""
        given = super().tolerance(atol=atol, rtol=rtol)
        if self.dtype == "float32":
            return given
        return attrs.evolve(given, atol=max(COARSE, given.atol))

    # engines

    def spec(self, *claims: str, model: Path | None = None, **fields: Any) -> InferenceSpec:
        """Return a specification for the target: its device, dtype and the options of `claims`."""
        given = {
            "model_path": str(model or self.model()),
            "dtype": self.dtype,
            "max_concurrent": 16,
            "device": self.target.locator.device,
            "options": self.target.options(*claims),
            **fields,
        }
        return InferenceSpec(**given)

    def new(self, *claims: str) -> InferenceEngine:
        """Return an engine that was not started; whoever made it closes it, the bench if the check did not."""
        engine: InferenceEngine = self.build(*claims)
        self._open.append(engine)
        return engine

    @contextlib.asynccontextmanager
    async def engine(
        self, *claims: str, model: Path | None = None, fresh: bool = False, **fields: Any
    ) -> AsyncIterator[InferenceEngine]:
        """Give a started engine. Unless `fresh` it may have served an earlier check of equal specification.

        A kept engine is at rest and serves the folder's weights, under whatever version they have by now. It is
        kept again only if the block ends well, so no failed check reaches into the next.
        """
        spec = self.spec(*claims, model=model, **fields)
        key = repr(spec)
        kept = None if fresh else self._take(key)
        if kept is None:
            kept = _Kept(engine=self.new(*claims), key=key, spec=spec)
            one_thread()
            await kept.engine.start(spec)
        else:
            self._open.append(kept.engine)
        engine = kept.engine
        before = (await engine.status()).version
        try:
            yield engine
        except BaseException:
            await self._drop_calls()
            raise  # `end` closes the engine
        await self._drop_calls()
        if fresh or not self.target.adapter.reuse or not await self._rests(kept, before):
            await engine.close()
        else:
            self._kept.append(kept)
            while len(self._kept) > (KEPT_WHERE_SLOW if self.target.adapter.slow_start else KEPT_ENGINES):
                await self._kept.pop(0).engine.close()
        self._open.remove(engine)

    def witness(self, engine: InferenceEngine) -> Witness:
        """Return the target's own view on the weights served; Inconclusive if its adapter has none."""
        found = self.target.adapter.witness(engine)
        if found is None:
            raise Inconclusive("the adapter has no witness of the weights served")
        return found

    # what checks do with an engine

    def ask(self, *ids: int, name: str = "request", num_prior: int = 0, **sampling: Any) -> GenerationRequest:
        """Return a greedy request for these ids unless `temperature` says otherwise."""
        given = {"temperature": 0.0, "max_new_tokens": 8, **sampling}
        return GenerationRequest(
            request_id=RequestId(name), input_ids=ids, sampling=SamplingParams(**given), num_prior=num_prior
        )

    def asks(
        self, prompts: Iterable[Sequence[int]], *, name: str = "r", seed: int | None = None, **sampling: Any
    ) -> list[GenerationRequest]:
        """Return a request of each prompt, named by its number; in `sampling` a list takes turns, a function is asked.

        From `seed` on each has a seed of its own, where the target takes seeds.
        """
        made = []
        for number, ids in enumerate(prompts):
            own = {key: _of_number(value, number) for key, value in sampling.items()}
            seeded = {} if seed is None else self.seeded(seed + number)
            made.append(self.ask(*ids, name=f"{name}{number}", **seeded, **own))
        return made

    def seeded(self, seed: int) -> dict[str, int]:
        """Return the seed of a request, for a target that takes seeds."""
        return {"seed": seed} if self.target.claimed("sampling.seed") else {}

    def call(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call and go on; whatever still runs when the check ends is cancelled."""
        task = asyncio.ensure_future(coroutine)
        self._calls.add(task)
        return task

    def start(self, engine: InferenceEngine, requests: Iterable[GenerationRequest]) -> list[asyncio.Task[Generation]]:
        """Start a call of `generate` for each request."""
        return [self.call(engine.generate(request)) for request in requests]

    async def until(
        self, condition: Callable[[], Awaitable[bool] | bool], what: str, *, seconds: float = WAIT_S
    ) -> None:
        """Let the event loop turn until the condition holds; Violation naming `what` if it does not within a bound."""
        deadline, turns = self.deadline(seconds), 0
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            if turns > POLLS_PER_S * deadline.limit_s and not deadline.left():
                raise deadline.late(f"nothing hangs (law 9), yet this was waited for in vain: {what}")
            turns += 1
            await asyncio.sleep(0 if turns < QUIET_TURNS else POLL_S)

    async def until_generated(self, engine: InferenceEngine, tokens: int) -> None:
        """Wait until the engine has generated that many more tokens, as its status counts them."""
        goal = (await engine.status()).tokens_generated + tokens

        async def reached() -> bool:
            return (await engine.status()).tokens_generated >= goal

        await self.until(reached, f"{tokens} more tokens in status().tokens_generated")

    async def until_shown(self, engine: InferenceEngine, running: int, waiting: int, when: str) -> None:
        """Wait until status shows so many requests running and waiting."""

        async def shown() -> bool:
            status = await engine.status()
            return (status.num_running, status.num_waiting) == (running, waiting)

        await self.until(shown, f"status to show {running} running and {waiting} waiting {when}")

    async def ended(self, calls: Iterable[asyncio.Task[T]], what: str) -> list[T | BaseException]:
        """Wait until every call has returned or raised; Violation naming `what` if one does neither."""
        waiting = list(calls)
        await self.until(lambda: all(task.done() for task in waiting), what)
        return await asyncio.gather(*waiting, return_exceptions=True)

    async def generate(self, engine: InferenceEngine, request: GenerationRequest) -> Generation:
        """Generate for one request that must succeed; Violation if it hangs."""
        return (await self.results([self.call(engine.generate(request))]))[0]

    async def results(self, calls: Iterable[asyncio.Task[Generation]]) -> list[Generation]:
        """Wait for calls that must all succeed."""
        waiting = list(calls)
        await self.until(lambda: all(task.done() for task in waiting), "every generate to return")
        return [task.result() for task in waiting]

    async def together(self, engine: InferenceEngine, requests: Iterable[GenerationRequest]) -> list[Generation]:
        """Generate for requests that run at once and must all succeed."""
        return await self.results(self.start(engine, requests))

    async def turns(self, number: int = 200) -> None:
        """Let the event loop turn, and a little time pass for engines whose work is elsewhere."""
        for turn in range(number):
            await asyncio.sleep(POLL_S if turn % 20 == 0 else 0)

    async def freeze(self, engine: InferenceEngine, *, times: int, after: int) -> None:
        """Pause an engine and let it go on so many times, each time after so many more tokens."""
        for _ in range(times):
            await self.until_generated(engine, after)
            await engine.pause(PauseMode.KEEP)
            await self.turns(20)
            await engine.resume()

    @property
    def resting(self) -> PauseMode:
        """Return the mode to pause the target in where any will do."""
        return PauseMode.KEEP if self.target.claimed("pause.keep") else PauseMode.ABORT

    def settling(self) -> PauseMode | None:
        """Return how the target must be paused for a commit, as the core would choose; None where it need not be."""
        claimed = self.target.claimed
        if claimed("weights.in_flight"):
            return None if claimed("weights.staged") else PauseMode.KEEP
        return PauseMode.ABORT if claimed("pause.abort") else PauseMode.KEEP

    async def update(self, engine: InferenceEngine, weights: FolderWeights) -> int:
        """Receive and commit weights as the next version, paused where the target needs it; return the version."""
        version = (await engine.status()).version + 1
        await self.take(engine, weights.offer(version), version)
        return version

    async def take(self, engine: InferenceEngine, source: WeightSource, version: int) -> Receipt:
        """As `update`, from a source of the check's own; return the receipt."""
        mode, paused = self.settling(), (await engine.status()).paused
        early = not self.target.claimed("weights.staged")
        if mode is not None and early:
            await engine.pause(mode)
        receipt = await engine.receive_weights(source, version)
        if mode is not None and not early:
            await engine.pause(mode)
        await engine.commit_weights(version)
        if mode is not None and not paused:
            await engine.resume()
        return receipt

    @contextlib.asynccontextmanager
    async def receiving(self, engine: InferenceEngine) -> AsyncIterator[None]:
        """For weights that will not be committed: pause a target that takes none while it runs, then let it go on."""
        mode = None if self.target.claimed("weights.staged") else self.settling()
        if mode is not None:
            await engine.pause(mode)
        yield
        if mode is not None:
            await engine.abort_weights()
            await engine.resume()

    async def serving(self, engine: InferenceEngine) -> int:
        """Return the version the engine says it serves."""
        return (await engine.status()).version

    # ends

    async def end(self, *, passed: bool) -> None:
        """Cancel what the check left running and close what it left open; after a failure keep no engine."""
        await self._drop_calls()
        if not passed:
            self._open.extend(kept.engine for kept in self._kept)
            self._kept.clear()
        engines, self._open = self._open, []
        for engine in engines:
            try:
                await engine.close()
            except Exception:
                if passed:
                    raise

    async def aclose(self) -> None:
        """Close every engine."""
        await self.end(passed=False)  # checks of close have judged what close does

    def _take(self, key: str) -> _Kept | None:
        found = next((kept for kept in self._kept if kept.key == key), None)
        if found is not None:
            self._kept.remove(found)
        return found

    async def _rests(self, kept: _Kept, version_before: int) -> bool:
        """Bring an engine to rest with the weights of its folder; False if it does not come to rest."""
        engine = kept.engine
        await engine.resume()
        await engine.abort_weights()
        if (await engine.status()).version != version_before:
            base = self.weights(kept.model)
            lora = kept.spec.lora
            await self.update(engine, base if lora is None else FolderWeights(_idle_adapter(base.tensors, lora), {}))

        try:
            await self.until_shown(engine, 0, 0, "in an engine at rest")
        except Violation as violation:
            self.notes.append(str(violation))
            return False
        return not (await engine.status()).paused

    async def _drop_calls(self) -> None:
        calls, self._calls = self._calls, set()
        for task in calls:
            task.cancel()
        if calls:
            _, stuck = await asyncio.wait(calls, timeout=WAIT_S * self.target.adapter.patience)
            for task in calls - stuck:
                if not task.cancelled():
                    task.exception()  # looked at, or asyncio would report it as lost
            if stuck:
                raise Violation(f"{len(stuck)} calls did not end when cancelled")


def _idle_adapter(weights: Mapping[str, Tensor], lora: LoraSpec) -> dict[str, Tensor]:
    """Return an adapter that changes nothing, under PEFT's names."""
    tensors = {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(lora.targets) and weight.ndim == 2:
            tensors[f"base_model.model.{layer}.lora_A.weight"] = torch.zeros(lora.rank, weight.shape[1])
            tensors[f"base_model.model.{layer}.lora_B.weight"] = torch.zeros(weight.shape[0], lora.rank)
    return tensors


def _of_number(value: Any, number: int) -> Any:
    """Return a sampling parameter of request `number`. Any: as SamplingParams has it."""
    if isinstance(value, list):
        return value[number % len(value)]
    return value(number) if callable(value) else value
