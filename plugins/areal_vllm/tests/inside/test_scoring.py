"""Prompt log-probs at a temperature: each request has its own, vLLM's bookkeeping stays whole."""

from __future__ import annotations

from typing import Any

import torch

from areal_vllm.inside import scoring
from areal_vllm.inside.asked import TEMPERATURE

LOGITS = torch.tensor([[2.0, 1.0, 0.0]])


class Sampler:
    @staticmethod
    def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
        return logits.log_softmax(-1)


class Params:
    def __init__(self, temperature: float | None) -> None:
        self.extra_args = None if temperature is None else {TEMPERATURE: temperature}


class Request:
    def __init__(self, temperature: float | None) -> None:
        self.sampling_params = Params(temperature)


class Runner:
    """Computes log-probs of every request in `num_prompt_logprobs`; those in `done` are taken out, as vLLM does."""

    def __init__(self, temperatures: dict[str, float | None], done: set[str]) -> None:
        self.sampler = Sampler()
        self.requests = {name: Request(value) for name, value in temperatures.items()}
        self.num_prompt_logprobs = dict.fromkeys(temperatures, 0)
        self.done = done
        assert scoring.install(self)

    def _get_prompt_logprobs_dict(self, hidden_states: Any, num_scheduled_tokens: Any) -> dict[str, torch.Tensor]:
        found = {name: self.sampler.compute_logprobs(LOGITS) for name in self.num_prompt_logprobs if name in self.done}
        for name in found:
            del self.num_prompt_logprobs[name]
        return found


def test_each_request_has_its_temperature() -> None:
    """Side by side in one step; without one it is 1."""
    runner = Runner({"a": 0.5, "b": 2.0, "c": None}, {"a", "b", "c"})
    found = runner._get_prompt_logprobs_dict(None, None)

    for name, heat in (("a", 0.5), ("b", 2.0), ("c", 1.0)):
        torch.testing.assert_close(found[name], (LOGITS / heat).log_softmax(-1))


def test_requests_whose_prompt_goes_on_stay() -> None:
    """vLLM computes a long prompt in pieces, and asks again."""
    runner = Runner({"a": 0.5, "b": 2.0}, {"a"})
    kept = runner.num_prompt_logprobs
    runner._get_prompt_logprobs_dict(None, None)

    assert runner.num_prompt_logprobs is kept
    assert kept == {"b": 0}


def test_nothing_stays_hot() -> None:
    """The next step's sampler is vLLM's own."""
    runner = Runner({"a": 0.5}, {"a"})
    runner._get_prompt_logprobs_dict(None, None)

    assert "compute_logprobs" not in vars(runner.sampler)
