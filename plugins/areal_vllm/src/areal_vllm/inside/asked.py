"""Names both sides use: of our transfer, and of what a request carries beside vLLM's own sampling parameters.

Knows: names; shared by the dialect, which writes them, and the code inside vLLM, which reads them.
Does not know: vLLM, torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEMPERATURE = "areal_temperature"
"""The temperature meant, where vLLM's own range (0.01 to 2) cannot say it, and of a scoring request."""
NUM_PRIOR = "areal_num_prior"
"""How many tokens at the end of the prompt an earlier part of the request generated."""

TRANSFER = "areal"
"""vLLM's name for the weight transfer that takes part in a sender's group (`transfer`)."""


def extra(sampling_params: Any, key: str) -> Any:
    """Return the value under `key` of a request's `extra_args`, None without one. Any: vLLM's SamplingParams."""
    given: Mapping[str, Any] = getattr(sampling_params, "extra_args", None) or {}
    return given.get(key)
