"""Settings of the vLLM backend, as written under `rollout.options`.

Knows: names, ranges, what each costs; the server arguments that are the plugin's own.
Does not know: torch, vLLM.
"""

from __future__ import annotations

from attrs import field, frozen, validators

from areal_serving.options import ServedOptions, none_of

ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM sets memory aside for."""
OWN_ARGUMENTS = frozenset(
    {
        "--api-key",
        "--device",
        "--dtype",
        "--enable-lora",
        "--enable-return-routed-experts",
        "--enable-scale-out",
        "--enable-sleep-mode",
        "--generation-config",
        "--headless",
        "--gpu-memory-utilization",
        "--host",
        "--kv-cache-memory-bytes",
        "--logprobs-mode",
        "--master-addr",
        "--master-port",
        "--max-logprobs",
        "--max-lora-rank",
        "--max-loras",
        "--max-model-len",
        "--max-num-seqs",
        "--model",
        "--nnodes",
        "-n",
        "--node-rank",
        "-r",
        "--pipeline-parallel-size",
        "-pp",
        "--port",
        "--scheduler-cls",
        "--seed",
        "--served-model-name",
        "--speculative-config",
        "--tensor-parallel-size",
        "-tp",
        "--tokenizer",
        "--tokens-only",
        "--trust-remote-code",
        "--weight-transfer-config",
        "--worker-extension-cls",
    }
)
"""Set by the plugin from other options, or known to break what it promises."""


@frozen(kw_only=True)
class VLLMConfig(ServedOptions):
    """What a vLLM server is started with, beside what every served backend has (`ServedOptions`).

    Example: VLLMConfig(kv_on_update="recompute", kv_cache_gib=8.0, server_args=("--block-size", "32"))
    """

    server_args: tuple[str, ...] = field(default=(), converter=tuple[str, ...], validator=none_of(OWN_ARGUMENTS))
    """Further arguments of `vllm serve`, one per item: ["--block-size", "32"]. Those of `OWN_ARGUMENTS` are refused."""
    device_memory_share: float = field(default=0.9, validator=[validators.gt(0.0), validators.le(1.0)])
    """Share of an accelerator's memory that weights and cache may take."""
    kv_cache_gib: float = field(default=0.0, validator=validators.ge(0.0))
    """Memory for keys and values, per rank. 0: what the share leaves on an accelerator, 1 GiB on the CPU."""
    max_adapters: int = field(default=0, validator=validators.ge(0))
    """Adapters served side by side. 0 serves none, and computes without the detour they cost."""
    max_adapter_rank: int = field(default=16, validator=[validators.ge(1), validators.le(ADAPTER_RANKS[-1])])
    """The highest rank among them; memory is set aside for the next that vLLM knows: 1, 8, 16, 32, 64, ..."""
    sleep: bool = False
    """Let the engine give its memory back between steps, as a run with `placement: shared` has it do."""
    tool_parser: str = ""
    """vLLM's parser of tool calls for the model, for example hermes, llama3_json, mistral. "" parses none."""
