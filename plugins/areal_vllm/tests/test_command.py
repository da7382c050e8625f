"""How a server is started: what must be in the command, what must not, what differs by device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from areal_core.contract.errors import PlanError
from areal_core.contract.inference import InferenceSpec, ReplicaPart
from areal_serving.dialect import Command, Launch
from areal_vllm.command import command_of
from areal_vllm.config import OWN_ARGUMENTS, VLLMConfig

KEY = "s3cret-of-this-run"


def command(*, options: dict[str, Any] | None = None, **spec: Any) -> Command:
    launch = Launch(
        spec=InferenceSpec(**{"model_path": "/models/m", **spec}),
        python="/env/bin/python",
        port=4711,
        key=KEY,
        folder=Path("/private"),
    )
    return command_of(launch, VLLMConfig(**(options or {})))


def value(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_the_key_travels_in_the_environment() -> None:
    """Every user of a machine can read command lines, so the key is not in one."""
    made = command()

    assert made.environ["VLLM_API_KEY"] == KEY
    assert not any(KEY in part for part in made.argv)
    assert KEY not in repr(made)


def test_the_server_listens_on_loopback() -> None:
    """Nobody outside the machine reaches it."""
    argv = command().argv

    assert value(argv, "--host") == "127.0.0.1"
    assert value(argv, "--port") == "4711"


def test_logprobs_are_of_the_distribution_sampled_from() -> None:
    """vLLM's default mode, raw_logprobs, ignores temperature and filters."""
    assert value(command().argv, "--logprobs-mode") == "processed_logprobs"


def test_sampling_defaults_of_a_model_folder_do_not_count() -> None:
    """A temperature in generation_config.json must not reach a request that asks for another."""
    assert value(command().argv, "--generation-config") == "vllm"


def test_remote_code_is_never_trusted() -> None:
    """A model folder cannot run code."""
    assert "--trust-remote-code" not in command().argv
    assert "--trust-remote-code" in OWN_ARGUMENTS


def test_nothing_is_told_to_anybody() -> None:
    """No usage statistics, and no look-ups at a hub."""
    environ = command().environ

    assert environ["VLLM_NO_USAGE_STATS"] == environ["DO_NOT_TRACK"] == environ["HF_HUB_OFFLINE"] == "1"


def test_the_spec_becomes_arguments() -> None:
    """Room, width, dtype and ranks are those of the spec."""
    argv = command(context_length=4096, max_concurrent=48, dtype="bfloat16", layout={"t": 2}, device="cuda").argv

    assert value(argv, "--max-model-len") == "4096"
    assert value(argv, "--max-num-seqs") == "48"
    assert value(argv, "--dtype") == "bfloat16"
    assert value(argv, "--tensor-parallel-size") == "2"
    assert value(argv, "--pipeline-parallel-size") == "1"


def test_the_models_own_context_needs_no_argument() -> None:
    """Context length 0 is the model's own."""
    assert "--max-model-len" not in command(context_length=0).argv


def test_replicas_draw_different_numbers() -> None:
    """Requests without a seed must not come out alike on two replicas."""
    seeds = {value(command(replica=replica, seed=3).argv, "--seed") for replica in range(8)}

    assert len(seeds) == 8


def test_the_cpu_takes_a_gibibyte_unless_told() -> None:
    """vLLM's own default is nine tenths of the machine's memory."""
    assert value(command().argv, "--kv-cache-memory-bytes") == str(2**30)
    assert value(command(options={"kv_cache_gib": 0.5}).argv, "--kv-cache-memory-bytes") == str(2**29)


def test_an_accelerator_takes_its_share() -> None:
    """There the cache gets what the share leaves."""
    argv = command(device="cuda", options={"device_memory_share": 0.7}).argv

    assert value(argv, "--gpu-memory-utilization") == "0.7"
    assert "--kv-cache-memory-bytes" not in argv
    assert "--enforce-eager" not in argv


def test_on_npus_weights_stay_in_the_layout_they_are_loaded_in() -> None:
    """vLLM-Ascend turns them into another, and would put new ones beside it."""
    made = command(device="npu")

    assert value(made.argv, "--additional-config") == '{"weight_nz_mode": 0}'
    assert made.environ["VLLM_ASCEND_ENABLE_NZ"] == "0"
    for device in ("cpu", "cuda"):
        assert "--additional-config" not in command(device=device).argv
        assert "VLLM_ASCEND_ENABLE_NZ" not in command(device=device).environ


def test_a_server_on_npus_is_started_as_on_any_accelerator() -> None:
    """Its share of the memory, its ranks, its graphs, our transfer and worker extension; processes are not forked."""
    made = command(device="npu", layout={"t": 2}, options={"sleep": True, "direct": True})

    assert value(made.argv, "--gpu-memory-utilization") == "0.9"
    assert value(made.argv, "--tensor-parallel-size") == "2"
    assert value(made.argv, "--worker-extension-cls") == "areal_vllm.inside.worker.WorkerExtension"
    assert value(made.argv, "--weight-transfer-config") == '{"backend": "areal"}'
    assert "--enable-sleep-mode" in made.argv
    assert "--enforce-eager" not in made.argv
    assert made.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert made.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_the_npus_of_a_server_are_those_of_its_worker() -> None:
    """The scheduler names them in the worker's environment, which a server inherits and the command leaves alone."""
    assert "ASCEND_RT_VISIBLE_DEVICES" not in command(device="npu", layout={"t": 2}).environ


def test_of_the_trainers_packages_only_canns_reach_a_server_on_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    """CANN's script puts its compilers on PYTHONPATH, without which operators are not compiled."""
    monkeypatch.setenv("ASCEND_HOME_PATH", "/cann/latest")
    monkeypatch.setenv("PYTHONPATH", "/cann/latest/python/site-packages:/mine:/cann/latest-2:/cann/latest/opp/tbe")
    assert command(device="npu").environ["PYTHONPATH"] == "/cann/latest/python/site-packages:/cann/latest/opp/tbe"

    monkeypatch.delenv("ASCEND_HOME_PATH")
    assert command(device="npu").environ["PYTHONPATH"] == ""
    assert "PYTHONPATH" not in command(device="cuda").environ


def test_settings_of_vllm_ascend_may_be_ones_own() -> None:
    """The last `--additional-config` wins; the workers look whether it keeps weights as they are loaded."""
    own = ["--additional-config", '{"weight_nz_mode": 0, "enable_cpu_binding": false}']

    assert command(device="npu", options={"server_args": own}).argv[-2:] == tuple(own)


def test_replicas_on_a_cpu_share_its_cores() -> None:
    """vLLM would bind each to the same first cores."""
    assert command().environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_the_sampler_is_not_compiled_on_a_cpu() -> None:
    """The first request for log-probs would wait half a minute for a C++ compiler."""
    assert command().environ["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in command(device="cuda").environ


def test_adapters_cost_nothing_unless_asked_for() -> None:
    """Without places for adapters vLLM computes without the detour."""
    assert "--enable-lora" not in command().argv

    made = command(options={"max_adapters": 3, "max_adapter_rank": 20}, device="cuda")
    assert value(made.argv, "--max-loras") == "3"
    assert value(made.argv, "--max-lora-rank") == "32", "the next that vLLM knows"
    assert made.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_on_a_cpu_a_place_for_adapters_stays_empty() -> None:
    """vLLM's kernels give what stands in the last place to requests without an adapter."""
    argv = command(options={"max_adapters": 3}).argv

    assert (value(argv, "--max-loras"), value(argv, "--max-cpu-loras")) == ("7", "7")


def test_direct_transfer_is_ours() -> None:
    """vLLM's own meets a sender that runs vLLM's trainer side, and needs a CUDA device."""
    assert "--weight-transfer-config" not in command().argv
    assert value(command(options={"direct": True}).argv, "--weight-transfer-config") == '{"backend": "areal"}'


@pytest.mark.parametrize("argument", ["--api-key", "--logprobs_mode=raw_logits", "--trust-remote-code", "-tp"])
def test_arguments_of_the_plugins_own_are_refused(argument: str) -> None:
    """An argument that would undo a promise is an error when the configuration is read."""
    with pytest.raises(PlanError, match="server_args"):
        VLLMConfig(server_args=(argument,))


def test_other_arguments_are_passed_on() -> None:
    """They come last, so that they win."""
    assert command(options={"server_args": ["--block-size", "64"]}).argv[-2:] == ("--block-size", "64")


def part(rank: int) -> ReplicaPart:
    """One of two hosts."""
    return ReplicaPart(rank=rank, num_hosts=2, host=f"10.0.0.{rank + 1}", leader="tcp://10.0.0.1:2345", key=KEY)


def test_a_part_that_leads_serves_and_is_told_of_the_other_hosts() -> None:
    """It answers on loopback like any other server; ranks meet at the leader's address, queues listen at its own."""
    made = command(layout={"t": 4}, part=part(0))
    told = {name: value(made.argv, name) for name in ("--nnodes", "--node-rank", "--master-addr", "--master-port")}

    assert told == {"--nnodes": "2", "--node-rank": "0", "--master-addr": "10.0.0.1", "--master-port": "2345"}
    assert (value(made.argv, "--host"), value(made.argv, "--tensor-parallel-size")) == ("127.0.0.1", "4")
    assert value(made.argv, "--distributed-executor-backend") == "mp"
    assert made.environ["VLLM_HOST_IP"] == "10.0.0.1"


def test_a_part_that_does_not_lead_serves_nobody() -> None:
    """It is of the same model and settings, has its own rank and address, and listens to no request."""
    made, leader = command(layout={"t": 4}, part=part(1)), command(layout={"t": 4}, part=part(0))
    start = ("/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/m", "--headless")

    assert made.argv[: len(start)] == start
    assert value(made.argv, "--node-rank") == "1"
    assert not {"--host", "--port"} & set(made.argv)
    assert made.environ["VLLM_HOST_IP"] == "10.0.0.2"
    assert {*leader.argv[3:]} - {*made.argv} == {"--model", "--host", "127.0.0.1", "--port", "4711", "0"}


def test_stages_and_their_ranks_share_the_cores_and_the_hosts() -> None:
    """A pipeline is ranks like tensor ones: a worker process each, cores divided among those of one host."""
    one, cut, apart = command(), command(layout={"p": 2, "t": 2}), command(layout={"p": 2}, part=part(1))

    assert (value(cut.argv, "--pipeline-parallel-size"), value(cut.argv, "--tensor-parallel-size")) == ("2", "2")
    assert value(one.argv, "--distributed-executor-backend") == "uni"
    assert "--distributed-executor-backend" not in cut.argv
    assert (value(apart.argv, "--pipeline-parallel-size"), value(apart.argv, "--nnodes")) == ("2", "2")
    if "OMP_NUM_THREADS" not in os.environ:
        assert int(one.environ["OMP_NUM_THREADS"]) >= int(cut.environ["OMP_NUM_THREADS"]) >= 1
