"""Settings of the SGLang backend, as written under `rollout.options`.

Knows: names, ranges, and which arguments of the server belong to areal.
Does not know: the server.
"""

from __future__ import annotations

from attrs import field, frozen, validators

from areal_serving.options import ServedOptions, none_of

OWN_ARGUMENTS = (
    *("--model-path", "--model", "--host", "--port", "--api-key", "--admin-api-key", "--config", "--dtype", "--device"),
    *("--tp", "--tp-size", "--tensor-parallel-size", "--dp", "--dp-size", "--data-parallel-size", "--pp", "--pp-size"),
    *("--context-length", "--max-running-requests", "--random-seed", "--sampling-backend", "--weight-version"),
    *("--trust-remote-code", "--skip-tokenizer-init", "--tokenizer-worker-num", "--enable-lora", "--max-lora-rank"),
    *("--enable-memory-saver", "--enable-return-routed-experts", "--speculative-algorithm", "--nnodes"),
    *("--node-rank", "--dist-init-addr", "--nccl-init-addr"),
    *("--disaggregation-mode", "--grpc-port"),
)
"""Arguments that are areal's to give, or that make the server another one than the manifest describes."""


@frozen(kw_only=True)
class SGLangConfig(ServedOptions):
    """How servers are started, beside what all served backends have.

    Example: SGLangConfig(kv_on_update="recompute", kv_cache_gib=8.0, server_args=("--page-size", "16"))
    """

    server_args: tuple[str, ...] = field(default=(), converter=tuple[str, ...], validator=none_of(OWN_ARGUMENTS))
    """Further arguments of `sglang.launch_server`, one per item."""
    kv_cache_gib: float = field(default=0.0, validator=validators.ge(0.0))
    """Memory for keys and values, per rank. 0: what is left on an accelerator, 1 GiB on the CPU."""
    cpu_threads: int = field(default=1, validator=validators.ge(1))
    """Threads each rank computes with on a CPU."""
    max_adapters: int = field(default=0, validator=validators.ge(0))
    """Adapters served side by side. 0 serves none, and computes without the detour they cost."""
    max_adapter_rank: int = field(default=16, validator=validators.ge(1))
    """The highest rank among them; memory is set aside for it."""
    trace_experts: bool = False
    """Record which experts computed each token, for a trainer that replays them; models with experts only."""
    sleep: bool = False
    """Let the engine give its memory back between steps, as a run with `placement: shared` has it do."""
    tool_parser: str = ""
    """SGLang's parser of tool calls for the model, for example qwen25, llama3, mistral. "" parses none."""
