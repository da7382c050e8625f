"""vLLM's `/metrics`, read for the few numbers the core has names for.

Knows: the Prometheus text format, as far as vLLM uses it.
Does not know: HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

from areal_core.contract.inference import KV_USED_SHARE, NUM_PREEMPTED, PREFIX_HIT_SHARE
from areal_serving.dialect import Gauges

_PREFIX = "vllm:"
_WANTED = frozenset(
    {
        "num_requests_running",
        "num_requests_waiting",
        "generation_tokens_total",
        "prompt_tokens_total",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
    }
)


def gauges_of(text: str) -> Gauges:
    """Return the counts of a server; those of several engine processes are added up."""
    found = _values(text)
    queried, hit = found.get("prefix_cache_queries_total", 0.0), found.get("prefix_cache_hits_total", 0.0)
    return Gauges(
        num_running=int(found.get("num_requests_running", 0)),
        num_waiting=int(found.get("num_requests_waiting", 0)),
        tokens_generated=int(found.get("generation_tokens_total", 0)),
        metrics={
            KV_USED_SHARE: found.get("kv_cache_usage_perc", 0.0),
            PREFIX_HIT_SHARE: hit / queried if queried else 0.0,
            NUM_PREEMPTED: found.get("num_preemptions_total", 0.0),
            "prompt_tokens": found.get("prompt_tokens_total", 0.0),
            "num_waiting_in_server": found.get("num_requests_waiting", 0.0),
        },
    )


def _values(text: str) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        name, _, rest = line[len(_PREFIX) :].partition("{")
        if name in _WANTED:
            found[name] = found.get(name, 0.0) + float(rest.rpartition(" ")[2])
    return found
