"""The command line of one SGLang server.

Knows: arguments and environment variables of SGLang, what differs between devices.
Does not know: requests, or weights that come later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.errors import ModelError
from areal_core.contract.inference import InferenceSpec
from areal_serving.dialect import Command, Launch
from areal_serving.policy_adapter import adapter_places, adapter_rank
from areal_serving.site import make_site
from areal_serving.weights import inspect_model, read_json
from areal_sglang.config import SGLangConfig

_ENTRY_POINTS = "[sglang.srt.plugins]\nareal = areal_sglang.inside.hooks:register\n"
"""By which SGLang finds the hooks."""
KEY_VARIABLE = "AREAL_SGLANG_KEY"
SWITCH = "AREAL_SGLANG"
FORK = "AREAL_SGLANG_FORK"
SAMPLER = "pytorch"
"""The one the hook on drawing sits in; the fused ones draw elsewhere."""
SPARE_TOKENS = 8
"""SGLang refuses prompts shorter than its context by 6, and cuts outputs short by 2; it is asked for more."""
_SEED_RANGE = 2**31 - 1
"""A prime: seeds that differ in their upper bits only differ here, too."""
_REPLICA_STRIDE = 1_000_003
_CPU_CACHE_GIB = 1.0
_ITEM_BYTES = {"float32": 4}


def command(launch: Launch, options: SGLangConfig) -> Command:
    """Return how to start a server on loopback that only this run can use."""
    spec = launch.spec
    cpu = spec.device.startswith("cpu")
    ranks = spec.layout.get("t", 1)
    context = _context(spec)
    argv = [
        *(launch.python, "-P", "-m", "areal_sglang.inside.launch"),
        *("--model-path", spec.model_path, "--host", "127.0.0.1", "--port", str(launch.port)),
        *("--device", spec.device.partition(":")[0], "--dtype", spec.dtype, "--tp-size", str(ranks)),
        *("--context-length", str(context + SPARE_TOKENS), "--max-running-requests", str(spec.max_concurrent)),
        *("--random-seed", str((spec.seed + _REPLICA_STRIDE * spec.replica) % _SEED_RANGE)),
        *("--weight-version", "0", "--sampling-backend", SAMPLER),
        *("--skip-server-warmup", "--enable-metrics"),
        *_hosts(spec),
        *(_on_cpu(spec, options, context, ranks) if cpu else _on_device(spec, options, context, ranks)),
        *_abilities(spec, options, cpu),
        *_trace(spec, options),
        *options.server_args,
    ]
    (launch.folder / "tmp").mkdir(exist_ok=True)
    environ = {
        "PYTHONPATH": str(make_site(launch.folder, Path(__file__).parent, _ENTRY_POINTS)),
        "PYTHONUNBUFFERED": "1",
        SWITCH: "1",
        KEY_VARIABLE: launch.key,
        "TMPDIR": str(launch.folder / "tmp"),  # sockets and metrics that SGLang does not remove
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # /health must answer while paused
        **(_cpu_environ(spec, options, ranks) if cpu else {}),
        **({"SGLANG_HOST_IP": spec.part.host} if spec.part else {}),  # where its queues listen for the other hosts
    }
    return Command(argv=argv, environ=environ)


def _context(spec: InferenceSpec) -> int:
    """Return the most tokens of a sequence.

    Raises:
        ModelError: the model has fewer positions; SGLang is allowed more for `SPARE_TOKENS`, and would not refuse.
    """
    own = inspect_model(spec.model_path, images=True).context_length
    if own and spec.context_length and spec.context_length > own:
        raise ModelError(
            f"a context of {spec.context_length} tokens does not fit model {spec.model_path!r}",
            why=f"its config.json allows {own} positions",
            fix=f"set rollout.context_length between 1 and {own}",
        )
    return spec.context_length or own


def _hosts(spec: InferenceSpec) -> Sequence[str]:
    """Return which part of a server over several hosts this is; where one does not lead SGLang serves nobody."""
    part = spec.part
    if part is None:
        return ()
    leader = part.leader.removeprefix("tcp://")
    return "--nnodes", str(part.num_hosts), "--node-rank", str(part.rank), "--dist-init-addr", leader


def _on_cpu(spec: InferenceSpec, options: SGLangConfig, context: int, ranks: int) -> Sequence[str]:
    tokens = cache_tokens(spec, options.kv_cache_gib or _CPU_CACHE_GIB, context, ranks)
    return (
        *("--attention-backend", "torch_native", "--mem-fraction-static", "0.9"),
        "--sleep-on-idle",  # its scheduler would spin on a core that others need
        *("--max-total-tokens", str(tokens)),
    )


def _on_device(spec: InferenceSpec, options: SGLangConfig, context: int, ranks: int) -> Sequence[str]:
    if not options.kv_cache_gib:
        return ()
    return "--max-total-tokens", str(cache_tokens(spec, options.kv_cache_gib, context, ranks))


def cache_tokens(spec: InferenceSpec, gib: float, context: int, ranks: int) -> int:
    """Return how many tokens of keys and values `gib` GiB per rank hold; never more than can be in use at once."""
    text = _text_config(spec)
    try:
        heads = text.get("num_key_value_heads", text["num_attention_heads"])
        size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        each = int(2 * text["num_hidden_layers"] * max(1, heads // ranks) * size * _ITEM_BYTES.get(spec.dtype, 2))
    except (KeyError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise ModelError(
            f"config.json of {spec.model_path!r} does not say how large its cache is",
            why=f"{type(error).__name__}: {error}",
            fix="use the config.json that belongs to the weights",
        ) from error
    most = spec.max_concurrent * (context + SPARE_TOKENS)
    return max(context + 2 * SPARE_TOKENS, min(most, int(gib * 2**30) // max(1, each)))


def _abilities(spec: InferenceSpec, options: SGLangConfig, cpu: bool) -> Sequence[str]:
    argv: list[str] = []
    if places := adapter_places(spec, options.max_adapters):
        rank = adapter_rank(spec, options.max_adapters, options.max_adapter_rank)
        argv += ["--enable-lora", "--max-lora-rank", str(rank), "--lora-target-modules", "all"]
        argv += ["--max-loras-per-batch", str(places + 1)]
        argv += ["--lora-backend", "torch_native"] if cpu else []
    if options.sleep and not cpu:  # there `inside.sleeping` frees memory
        argv.append("--enable-memory-saver")
    if options.tool_parser:
        argv += ["--tool-call-parser", options.tool_parser]
    return argv


def _trace(spec: InferenceSpec, options: SGLangConfig) -> Sequence[str]:
    has_experts = bool(_text_config(spec).get("num_experts_per_tok"))
    return ("--enable-return-routed-experts",) if options.trace_experts and has_experts else ()


def _text_config(spec: InferenceSpec) -> Mapping[str, Any]:
    """Return the part of the model's config.json that is of its decoder. Any: JSON."""
    config: Mapping[str, Any] = read_json(Path(spec.model_path) / "config.json")
    return config.get("text_config") or config


def _cpu_environ(spec: InferenceSpec, options: SGLangConfig, ranks: int) -> Mapping[str, str]:
    """Give each rank cores of its own, as far as there are any; without this, threads crowd each other out."""
    server = spec.replica
    if spec.part is not None:  # SGLang counts the ranks of this host
        server = spec.replica * spec.part.num_hosts + spec.part.rank
        ranks //= spec.part.num_hosts
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    first = server * ranks * options.cpu_threads
    groups = [
        ",".join(str(cores[(first + rank * options.cpu_threads + n) % len(cores)]) for n in range(options.cpu_threads))
        for rank in range(ranks)
    ]
    return {
        FORK: "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(groups),
        "OMP_NUM_THREADS": str(options.cpu_threads),
    }
