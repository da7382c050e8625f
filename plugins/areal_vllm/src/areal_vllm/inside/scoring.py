"""Log-probs of prompt tokens at a temperature: vLLM's own are of temperature 1, whatever a request asks.

Knows: where vLLM's V1 model runner computes them.
Does not know: what asks for scores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from areal_vllm.inside.asked import TEMPERATURE, extra
from areal_vllm.inside.heads import rows_of

_NEEDED = ("_get_prompt_logprobs_dict", "num_prompt_logprobs", "sampler", "lora_config", "input_batch")


def install(runner: Any) -> bool:
    """Make the runner heed `TEMPERATURE` in prompt log-probs; tell whether it could. Any: vLLM's runner."""
    if not all(hasattr(runner, name) for name in _NEEDED):
        return False
    runner._get_prompt_logprobs_dict = _Scores(runner, runner._get_prompt_logprobs_dict)
    return True


class _Scores:
    """Asks vLLM for one request at a time, so that each has its temperature. Any: vLLM's own types throughout."""

    def __init__(self, runner: Any, original: Any) -> None:
        self._runner = runner
        self._original = original

    def __call__(self, hidden_states: Any, num_scheduled_tokens: Any) -> Any:
        runner = self._runner
        waiting = runner.num_prompt_logprobs
        if not any(self._meant(name) for name in waiting):
            return self._original(hidden_states, num_scheduled_tokens)
        found: dict[str, Any] = {}
        left: dict[str, Any] = {}
        try:
            for name, count in waiting.items():
                runner.num_prompt_logprobs = {name: count}
                with _heated(runner.sampler, self._meant(name) or 1.0), rows_of(runner, name):
                    found.update(self._original(hidden_states, num_scheduled_tokens))
                left.update(runner.num_prompt_logprobs)
        finally:
            waiting.clear()
            waiting.update(left)
            runner.num_prompt_logprobs = waiting
        return found

    def _meant(self, name: str) -> float | None:
        request = self._runner.requests.get(name)
        value: float | None = extra(request.sampling_params, TEMPERATURE) if request is not None else None
        return value


@contextlib.contextmanager
def _heated(sampler: Any, temperature: float) -> Iterator[None]:
    plain = type(sampler).compute_logprobs

    def heated(logits: Any) -> Any:
        return plain(logits.float() / temperature)

    sampler.compute_logprobs = heated
    try:
        yield
    finally:
        del sampler.compute_logprobs
