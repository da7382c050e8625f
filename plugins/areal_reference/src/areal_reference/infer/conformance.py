"""What the conformance suite must know of the reference generator.

Knows: its options, and how to read the weights it computes with without asking its contract methods.
Does not know: any check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from areal_conformance.adapter import Adapter, Bounds, Threshold, Variant, Witness

if TYPE_CHECKING:
    from torch import Tensor

    from areal_reference.infer.engine import ReferenceInferenceEngine


class LoadedTensors:
    """Reads the parameters of the model object that the next step will run."""

    def __init__(self, engine: ReferenceInferenceEngine) -> None:
        self._engine = engine

    def tensors(self) -> Mapping[str, Tensor]:
        """Return copies of them on the CPU, under the names of the model's folder."""
        from areal_torch import hf

        model = self._engine.running.loaded.model
        found: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            found.update(hf.folder_tensors(model, name, parameter.detach().cpu().clone()))
        return found


class FailingStep:
    """Steps write what is not finite over the rows that run, and fail."""

    def __init__(self, engine: ReferenceInferenceEngine) -> None:
        self._loop, self._fired = engine.running.loop, 0

    def inject(self) -> None:
        """Take the place of the forward."""
        vars(self._loop.runner)["_forward"] = self._fail

    def heal(self) -> None:
        """Give it back."""
        vars(self._loop.runner).pop("_forward", None)

    def fired(self) -> int:
        """Return how many steps failed."""
        return self._fired

    def _fail(self, *_given: Any) -> Tensor:
        self._fired += 1
        for slab in (*self._loop.runner.cache.keys, *self._loop.runner.cache.values):
            slab[: self._loop.rows.count] = float("nan")
        raise RuntimeError("the step was told to fail")


_STEPS = 3
_ROW_TOKENS = 9 * 4096
"""Eight rows and one of padding, as long as a power of two: what the cache takes for two requests of 4,000 tokens."""
_ALMOST_GIB = 0.99 * _ROW_TOKENS * 256 / 2**30
"""256 bytes a token: two layers, two heads, keys and values of eight floats. Enough for the 4,000, not for the rows."""


async def _run_at_once(engine: ReferenceInferenceEngine) -> int:
    """Return how many of four long requests run while the others wait for room in the cache."""
    return await _run_of(engine, 4000, 4000, 4000, 4000)


async def _run_beside_a_long_one(engine: ReferenceInferenceEngine) -> int:
    """Return how many of a long request and three shorter ones, which came after it, run at once."""
    return await _run_of(engine, 4000, 400, 400, 400)


async def _run_before_a_long_one(engine: ReferenceInferenceEngine) -> int:
    """Return how many of a short request, a long one that came next and two shorter ones behind it run at once."""
    return await _run_of(engine, 400, 4000, 400, 400)


async def _run_of(engine: ReferenceInferenceEngine, *budgets: int) -> int:
    """Return how many of some requests run while the others wait for room in the cache; by their budgets."""
    from areal_torch.testing.serving import ask

    asked = [ask(5, n, name=f"r{n}", max_new_tokens=most, temperature=1.0) for n, most in enumerate(budgets, 2)]
    calls = [asyncio.ensure_future(engine.generate(one)) for one in asked]
    tokens = 0.0
    try:
        async with asyncio.timeout(60.0):
            while True:
                status = await engine.status()
                if status.num_running + status.num_waiting < len(calls):
                    tokens = status.tokens_generated
                elif status.tokens_generated >= tokens + _STEPS * len(calls):  # whoever has room was let in
                    return status.num_running
                await asyncio.sleep(0)
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def _steps_of_four(engine: ReferenceInferenceEngine) -> float:
    """Return how many steps four requests of a token each take that were there at once; each has a prompt of six."""
    from areal_core.contract.inference import PauseMode
    from areal_torch.testing.serving import ask

    await engine.pause(PauseMode.KEEP)
    asked = [ask(n, 7, 8, 9, 10, 11, name=f"s{n}", max_new_tokens=1) for n in range(2, 6)]
    calls = [asyncio.ensure_future(engine.generate(one)) for one in asked]
    for _ in range(len(calls)):  # a turn for each to be taken in
        await engine.status()
        await asyncio.sleep(0)
    await engine.resume()
    await asyncio.gather(*calls)
    return (await engine.status()).metrics["steps"]


def _witness(engine: ReferenceInferenceEngine) -> Witness:
    return LoadedTensors(engine)


ADAPTER = Adapter(
    witness=_witness,
    faults=lambda engine: {"step": FailingStep(engine)},
    models=("qwen3", "qwen2", "llama"),
    architectures=("qwen3_moe", "mistral", "mixtral", "qwen2_moe", "granite", "cohere", "glm4", "phi", "gpt2", "opt"),
    traits=("rope.linear", "rope.yarn", "rope.llama3", "activation", "biases"),
    dtypes=("float32", "bfloat16"),
    thresholds=(
        Threshold(counts="prompt", at=7, options={"prefill_tokens": 7}),
        Threshold(counts="length", at=64, place="areal_reference.infer.runner:LENGTH_BUCKET"),
        Threshold(counts="length", at=64, place="areal_reference.infer.cache:FIRST_LENGTH"),
        Threshold(counts="requests", at=8, place="areal_reference.infer.cache:FIRST_ROWS"),
        Threshold(counts="requests", at=8, place="areal_reference.infer.loop:TILES"),
    ),
    no_threshold={
        "areal_reference.infer.loading:PROBE_TOKENS": "tokens by which a new model is tried, before any request"
    },
    bounds={
        "cache_gib": Bounds(takes=(1e-9,), refuses=(0.0, -1.0)),
        "prefill_tokens": Bounds(takes=(1,), refuses=(0, -1)),
        "kv_on_update": Bounds(takes=("keep", "recompute"), refuses=("", "Keep")),
        "deterministic": Bounds(takes=(True, False), refuses=("perhaps",)),
    },
    variants={
        "small_cache": Variant(options={"cache_gib": 1e-3}, shows=_run_at_once, gives=1),
        "almost_enough": Variant(options={"cache_gib": _ALMOST_GIB}, shows=_run_at_once, gives=1, again=False),
        "short_too": Variant(options={"cache_gib": _ALMOST_GIB}, shows=_run_beside_a_long_one, gives=1, again=False),
        "long_later": Variant(options={"cache_gib": _ALMOST_GIB}, shows=_run_before_a_long_one, gives=1, again=False),
        "tiles": Variant(
            options={"deterministic": True},
            shows=lambda engine: engine.running.loop.tile > 0,
            gives=True,
            checks=("infer.threshold.requests",),
        ),
        "prompts_in_turn": Variant(options={"prefill_tokens": 9}, shows=_steps_of_four, gives=4.0, again=False),
    },
    options={
        "deterministic": {"deterministic": True},
        "weights.kv_kept": {"kv_on_update": "keep"},
        "weights.kv_recomputed": {"kv_on_update": "recompute"},
    },
)
