"""The command line and environment of a vLLM server.

Knows: vLLM's arguments and environment variables, and those of vLLM-Ascend, which is vLLM on NPUs.
Does not know: how the process is run, or what it is asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from areal_core.contract.inference import InferenceSpec
from areal_serving.dialect import Command, Launch
from areal_serving.policy_adapter import adapter_places, adapter_rank
from areal_vllm.config import ADAPTER_RANKS, VLLMConfig
from areal_vllm.inside.asked import TRANSFER
from areal_vllm.profiler import profiler_config

MODULE = "vllm.entrypoints.openai.api_server"
COMMAND = "vllm.entrypoints.cli.main"
"""What else starts servers: only here they may be parts that serve nobody."""
EXTENSION = "areal_vllm.inside.worker.WorkerExtension"
BASE_NAME = "policy"
CPU_CACHE_GIB = 1.0
_SEED_RANGE = 2**31 - 1
"""A prime: seeds that differ in their upper bits only differ here, too."""
_REPLICA_STRIDE = 1_000_003
_DEFAULT_BATCHED_TOKENS = 2048
_ENVIRON = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes that pause, resume, abort and reach the workers
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the hooks in `inside` are for the other one
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


_ON_NPU = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a process that has touched an NPU must not be forked; sleep wants it too
    "VLLM_ASCEND_ENABLE_NZ": "0",  # as `weight_nz_mode`, for versions that have no such setting
}
_ASCEND_SETTINGS = '{"weight_nz_mode": 0}'
"""Weights stay in the layout they are loaded in; new ones are not turned into the faster one."""
_CANN = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ATB_HOME_PATH")
"""Where CANN's scripts say that it lies."""


def command_of(launch: Launch, config: VLLMConfig) -> Command:
    """Return how a server for `launch` is started."""
    part = launch.spec.part
    start = (MODULE,) if part is None or part.leads else (COMMAND, "serve", launch.spec.model_path, "--headless")
    return Command(argv=(launch.python, "-m", *start, *arguments(launch, config)), environ=environ(launch, config))


def arguments(launch: Launch, config: VLLMConfig) -> tuple[str, ...]:
    """Return the arguments after the module's name."""
    spec = launch.spec
    found: dict[str, str | None] = {
        **_listening(launch),
        "--served-model-name": BASE_NAME,
        "--dtype": spec.dtype,
        "--seed": str((spec.seed + _REPLICA_STRIDE * spec.replica) % _SEED_RANGE),
        "--tensor-parallel-size": str(spec.layout.get("t", 1)),
        "--pipeline-parallel-size": str(spec.layout.get("p", 1)),
        "--max-num-seqs": str(spec.max_concurrent),
        "--logprobs-mode": "processed_logprobs",  # of the distribution sampled from, not of the raw logits
        "--generation-config": "vllm",  # a model folder's sampling defaults must not touch requests
        "--enable-scale-out": None,
        "--enable-prefix-caching": None,
        "--enable-prompt-tokens-details": None,  # else no answer tells what was found in that cache
        "--worker-extension-cls": EXTENSION,
        "--disable-uvicorn-access-log": None,
        **_memory(launch, config),
        **_abilities(spec, config),
        **_weight_transfer(config),
        **_hosts(spec),
    }
    if spec.context_length:
        found["--max-model-len"] = str(spec.context_length)
    if spec.max_concurrent > _DEFAULT_BATCHED_TOKENS:
        found["--max-num-batched-tokens"] = str(spec.max_concurrent)
    if spec.device == "npu":
        found["--additional-config"] = _ASCEND_SETTINGS
    elif launch.traces is not None:  # vLLM-Ascend's profiler writes folders for tools of its own
        found["--profiler-config"] = profiler_config(launch.traces)
    if spec.device == "cpu":
        found["--enforce-eager"] = None  # compiling takes minutes and gains little here
        if num_ranks(spec) == 1:
            found["--distributed-executor-backend"] = "uni"  # one process less to start and to hold in memory
    flat = [part for name, value in found.items() for part in ((name,) if value is None else (name, value))]
    return (*flat, *config.server_args)


def environ(launch: Launch, config: VLLMConfig) -> dict[str, str]:
    """Return what is added to the environment; the key is here and not among the arguments."""
    found = {**_ENVIRON, "VLLM_API_KEY": launch.key}
    if adapter_places(launch.spec, config.max_adapters):
        found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if launch.spec.device == "npu":
        found |= {**_ON_NPU, "PYTHONPATH": _compilers_of_cann(os.environ)}
    if launch.spec.device == "cpu":
        # vLLM would bind every replica to the same first cores, and compile the sampler for half a minute
        found |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
        found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # lets "uni" be; the engine has a process of its own all the same
        if "OMP_NUM_THREADS" not in os.environ:
            found["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // _ranks_here(launch.spec)))
    if launch.spec.part is not None:
        found["VLLM_HOST_IP"] = launch.spec.part.host  # where its queues listen for the other hosts
    return found


def _listening(launch: Launch) -> dict[str, str | None]:
    """Return which model it serves and where; a part that does not lead is told the model before its arguments."""
    part = launch.spec.part
    if part is not None and not part.leads:
        return {}
    return {"--model": launch.spec.model_path, "--host": "127.0.0.1", "--port": str(launch.port)}


def _hosts(spec: InferenceSpec) -> dict[str, str | None]:
    if spec.part is None:
        return {}
    leader = urlsplit(spec.part.leader)
    return {
        "--distributed-executor-backend": "mp",
        "--nnodes": str(spec.part.num_hosts),
        "--node-rank": str(spec.part.rank),
        "--master-addr": str(leader.hostname),
        "--master-port": str(leader.port),
    }


def num_ranks(spec: InferenceSpec) -> int:
    """Return how many workers a server has, on all its hosts."""
    return spec.layout.get("t", 1) * spec.layout.get("p", 1)


def _ranks_here(spec: InferenceSpec) -> int:
    return num_ranks(spec) // (spec.part.num_hosts if spec.part else 1)


def _compilers_of_cann(environ: Mapping[str, str]) -> str:
    """Return the part of PYTHONPATH that CANN's own script set: its compilers are Python packages there."""
    homes = [environ[name].rstrip("/") + "/" for name in _CANN if environ.get(name)]
    parts = environ.get("PYTHONPATH", "").split(":")
    return ":".join(part for part in parts if part and f"{part}/".startswith(tuple(homes)))


def _memory(launch: Launch, config: VLLMConfig) -> dict[str, str | None]:
    gib = config.kv_cache_gib or (CPU_CACHE_GIB if launch.spec.device == "cpu" else 0.0)
    found: dict[str, str | None] = {"--kv-cache-memory-bytes": str(int(gib * 2**30))} if gib else {}
    if launch.spec.device != "cpu":
        found["--gpu-memory-utilization"] = str(config.device_memory_share)
    return found


def _abilities(spec: InferenceSpec, config: VLLMConfig) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    if places := adapter_places(spec, config.max_adapters):
        rank = adapter_rank(spec, config.max_adapters, config.max_adapter_rank)
        most = 2 * places  # a version that still serves beside the next
        found |= {
            "--enable-lora": None,
            # vLLM's kernels for the CPU give requests without an adapter the last place: it has to stay empty.
            "--max-loras": str(most + 1 if spec.device == "cpu" else places),
            "--max-cpu-loras": str(most + 1 if spec.device == "cpu" else most),
            "--max-lora-rank": str(next((allowed for allowed in ADAPTER_RANKS if allowed >= rank), rank)),
        }
    if config.sleep and spec.device != "cpu":  # there the plugin frees memory itself
        found["--enable-sleep-mode"] = None
    return found


def _weight_transfer(config: VLLMConfig) -> dict[str, str | None]:
    if not config.direct:
        return {}
    return {"--weight-transfer-config": f'{{"backend": "{TRANSFER}"}}'}
