"""What vLLM-Ascend does in another way than vLLM, of all that our promises rest on. Only for workers on NPUs.

Knows: its configuration and its sampler, as they are in its source for vLLM 0.28 to 0.30. It was never run here.
Does not know: who is told.
"""

from __future__ import annotations

from typing import Any

_PROCESSED = "processed_logprobs"


def tell_processed(runner: Any) -> None:
    """Have log-probs be of the distribution sampled from. Any: vLLM's runner.

    vLLM-Ascend makes its sampler without what `--logprobs-mode` says, so they would be of the raw logits.
    """
    for part in (runner.sampler, runner.sampler.topk_topp_sampler):
        part.logprobs_mode = _PROCESSED


def why_unfit() -> str:
    """Return why no weights can be updated, or no seed be kept, with the server's settings; "" if all is well."""
    from vllm_ascend.ascend_config import get_ascend_config

    settings: Any = get_ascend_config()  # Any: vLLM-Ascend's own
    if getattr(settings, "weight_nz_mode", 0):
        return (
            "it keeps weights in the layout FRACTAL_NZ, into which new ones are not put; "
            'its --additional-config lacks "weight_nz_mode": 0'
        )
    if getattr(settings, "enable_async_exponential", False):
        return "enable_async_exponential draws random numbers before seeds are set; take it out of --additional-config"
    return ""
