"""What workers do on NPUs beside the rest; vLLM-Ascend's settings and sampler are small ones of the same shape."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from areal_vllm.inside import ascend, kernels


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the settings that vLLM-Ascend gives out, those our command asks for."""
    found = SimpleNamespace(weight_nz_mode=0)
    module: Any = ModuleType("vllm_ascend.ascend_config")  # Any: it gets an attribute
    module.get_ascend_config = lambda: found
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", module)
    return found


def why_unfit(kind: str) -> str:
    return kernels.why_unfit(SimpleNamespace(device=SimpleNamespace(type=kind)))


def test_a_layout_that_new_weights_are_not_put_into_is_refused(settings: SimpleNamespace) -> None:
    """Before the first request, with the setting to change; elsewhere nobody asks."""
    assert why_unfit("npu") == ""

    settings.weight_nz_mode = 1
    assert '"weight_nz_mode": 0' in why_unfit("npu")
    assert why_unfit("cuda") == ""


def test_random_numbers_drawn_before_the_seeds_are_refused(settings: SimpleNamespace) -> None:
    """A seeded request would not be told from any other."""
    settings.enable_async_exponential = True

    assert "enable_async_exponential" in why_unfit("npu")


def test_log_probs_are_of_the_distribution_sampled_from() -> None:
    """vLLM-Ascend makes its sampler with the default mode, whatever the command says: both its parts are told."""
    parts = SimpleNamespace(logprobs_mode="raw_logprobs")
    runner = SimpleNamespace(sampler=SimpleNamespace(logprobs_mode="raw_logprobs", topk_topp_sampler=parts))

    ascend.tell_processed(runner)

    assert (runner.sampler.logprobs_mode, parts.logprobs_mode) == ("processed_logprobs", "processed_logprobs")
