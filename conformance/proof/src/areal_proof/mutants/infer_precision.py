"""Generators that keep in half what must be float32, or exact.

Knows: which numbers each rounds.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from areal_proof.mutants.rows import Original, after, breaking, gives, put, row, then, within
from areal_reference.infer import sampling
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.infer.runner import ModelRunner
from areal_torch.lora import ADAPTER_FILE

breaks = breaking("infer/reference", ReferenceInferenceEngine)


def _half(numbers: Any) -> tuple[float, ...]:
    return tuple(torch.tensor(list(numbers), dtype=torch.float32).half().float().tolist())


def _narrow_cache(model: Any) -> None:
    """Let keys and values be those of half precision, whatever the dtype of the run."""
    for name, module in model.named_modules():
        if name.endswith(("k_proj", "v_proj")):
            module.register_forward_hook(lambda _module, _inputs, output: output.half().to(output.dtype))


def _round_places(model: Any) -> None:
    """Let tokens stand where the dtype of the run can tell, from the second table of angles on."""
    model.model.rotary_emb.register_forward_pre_hook(
        lambda _module, given: (given[0], given[1].to(given[0].dtype).float(), *given[2:])
    )


def _divided_in_half(logits: torch.Tensor, rows: sampling.RowSampling) -> torch.Tensor:
    """Return logits as the sampler does, of what the dtype of the run leaves of them beside each temperature."""
    heat = torch.from_numpy(rows.temperature).unsqueeze(1)
    return _DISTRIBUTION((logits.bfloat16() / heat.bfloat16()).float() * heat, rows)


_DISTRIBUTION = sampling.distribution_logits


class _ScoresInHalf(ModelRunner):
    """Divides the logits of scores in the dtype of the run."""

    @torch.inference_mode()
    def scores(self, ids: Any, temperature: float) -> list[float]:
        self.cache.grow(0, len(ids))
        logits = (self._alone(self.cache.scratch, ids, keep=len(ids))[:-1].bfloat16() / temperature).float()
        found: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        return [0.0, *found]


@breaks("load_adapter", "infer.adapters.bfloat16")
async def AdaptersAsSaved(original: Original, self: ReferenceInferenceEngine, name: str, path: Path) -> None:
    """Keeps an adapter in the dtype that it was saved in, whatever the policy is computed in."""
    await original()
    loaded, saved = self.running.adapters.find(name), load_file(path / ADAPTER_FILE)
    assert loaded is not None
    dtype = next(iter(saved.values())).dtype
    for layer, (first, second) in loaded.layers.items():
        loaded.layers[layer] = first.to(dtype), second.to(dtype)


ROWS = breaks.rows(
    row("BehaviourKeptInHalf", "Keeps the log-probs of tokens in float16 until they are returned.",
        "infer.precision.logprobs", generate=gives(logprobs=lambda result: _half(result.logprobs))),
    row("ScoresKeptInHalf", "Keeps scores in float16 until they are returned.", "infer.precision.scores",
        score=after(lambda result: _half(result))),
    row("ScoresDividedInHalf", "Divides the logits of scores by the temperature in bfloat16.",
        "infer.precision.scores",
        start=then(lambda self: setattr(self.running.loop.runner, "__class__", _ScoresInHalf))),
    row("HeatInHalf", "Divides the logits it samples from by the temperature in bfloat16.",
        "infer.precision.temperature",
        generate=within(lambda: put(sampling, distribution_logits=_divided_in_half))),
    row("CacheInHalf", "Caches keys and values in float16 in a float32 run.", "infer.precision.length",
        start=then(lambda self: _narrow_cache(self.running.loaded.model))),
    row("PlacesInTheDtypeOfTheRun", "Counts places in the dtype of the run: far on, neighbours stand in one.",
        "infer.precision.places", start=then(lambda self: _round_places(self.running.loaded.model))),
)  # fmt: skip
