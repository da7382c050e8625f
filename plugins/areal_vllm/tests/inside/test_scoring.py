"""Prompt log-probs at a temperature: each request has its own, and its own adapter; vLLM's bookkeeping stays whole."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
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
        self.lora_config: object = None
        self.input_batch = SimpleNamespace(req_id_to_index={name: row for row, name in enumerate(temperatures)})
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


class Adapters:
    """Which adapter each row of a step has, as vLLM keeps it: one row for each request, room for more."""

    def __init__(self, *adapters: int) -> None:
        self._sampler_indices = torch.tensor([*adapters, 99, 99, 99])
        self.indices_len = [None, len(adapters)]

    @property
    def sampler_indices(self) -> torch.Tensor:
        return self._sampler_indices[: self.indices_len[1]]


class Head(torch.nn.Module):
    """A head that takes as many rows as it has adapters for, as vLLM's kernels for the CPU do."""

    def __init__(self, adapters: Adapters) -> None:
        super().__init__()
        self.punica_wrapper = adapters


class Model(torch.nn.Module):
    """Its logits are the number of each row's adapter."""

    def __init__(self, adapters: Adapters) -> None:
        super().__init__()
        self.logits_processor = Head(adapters)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        adapters = self.logits_processor.punica_wrapper.sampler_indices
        assert len(adapters) == len(hidden_states), "the kernel ends the server"
        return adapters


class ScoringRunner(Runner):
    """A prompt of four tokens is scored beside the others of its step."""

    def _get_prompt_logprobs_dict(self, hidden_states: Any, num_scheduled_tokens: Any) -> dict[str, torch.Tensor]:
        rows = torch.zeros(4, 8)
        return {name: self.model.compute_logits(rows) for name in self.num_prompt_logprobs}

    model: Model


def test_rows_of_a_prompt_have_the_adapter_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside requests with other adapters and none; the next step's rows are one per request again."""
    layers = ModuleType("vllm.lora.layers.logits_processor")
    layers.LogitsProcessorWithLoRA = Head  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, layers.__name__, layers)
    adapters = Adapters(2, -1, 0)
    runner = ScoringRunner({"a": 1.0, "b": 1.0, "c": 1.0}, set())
    runner.lora_config, runner.model = object(), Model(adapters)
    found = runner._get_prompt_logprobs_dict(None, None)

    assert {name: row.tolist() for name, row in found.items()} == {"a": [2] * 4, "b": [-1] * 4, "c": [0] * 4}
    assert adapters.sampler_indices.tolist() == [2, -1, 0]
    assert runner.model.compute_logits(torch.zeros(3, 8)).tolist() == [2, -1, 0]


def test_a_request_that_is_not_in_the_step_has_no_rows() -> None:
    """One that was preempted between two pieces of its prompt waits in vLLM's book."""
    runner = Runner({"a": 0.5}, set())
    runner.lora_config, runner.input_batch = object(), SimpleNamespace(req_id_to_index={})
    runner._get_prompt_logprobs_dict(None, None)

    assert runner.num_prompt_logprobs == {"a": 0}
