"""How a server is started: what is in the command, what only in its environment."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from areal_core.contract.errors import ModelError, PlanError
from areal_core.contract.inference import InferenceSpec, ReplicaPart
from areal_serving.dialect import Launch
from areal_sglang.command import SPARE_TOKENS, cache_tokens, command
from areal_sglang.config import SGLangConfig
from areal_torch.testing.models import make_tiny_model

KEY = "a-key-nobody-may-see"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model with a context of 128 tokens."""
    return make_tiny_model(tmp_path_factory.mktemp("model"), kind="qwen3", max_position=128)


def launch(model: Path, folder: Path, **spec: object) -> Launch:
    """Return a launch of that model. object: fields of InferenceSpec."""
    whole = InferenceSpec(model_path=str(model), **{"max_concurrent": 4, **spec})  # type: ignore[arg-type]
    return Launch(spec=whole, python="/env/bin/python", port=8123, key=KEY, folder=folder)


def value(argv: tuple[str, ...], name: str) -> str:
    """Return what follows an argument."""
    return argv[argv.index(name) + 1]


def test_the_key_is_in_the_environment_only(model: Path, tmp_path: Path) -> None:
    """Every user of the machine can read a command line."""
    made = command(launch(model, tmp_path), SGLangConfig())

    assert not any(KEY in argument for argument in made.argv)
    assert made.environ["AREAL_SGLANG_KEY"] == KEY


def test_it_listens_on_loopback_and_runs_no_code_of_the_model(model: Path, tmp_path: Path) -> None:
    """Nobody else reaches it; a model folder is data."""
    argv = command(launch(model, tmp_path), SGLangConfig()).argv

    assert value(argv, "--host") == "127.0.0.1"
    assert "--trust-remote-code" not in argv


def test_the_server_is_asked_for_room_it_keeps_for_itself(model: Path, tmp_path: Path) -> None:
    """SGLang cuts outputs short two tokens before its context is full, without a word."""
    argv = command(launch(model, tmp_path), SGLangConfig()).argv

    assert int(value(argv, "--context-length")) == 128 + SPARE_TOKENS


def test_a_context_beyond_the_positions_is_refused(model: Path, tmp_path: Path) -> None:
    """SGLang must be allowed more than the model has, for its own room, and would only warn."""
    with pytest.raises(ModelError, match=r"(?s)129 tokens.*between 1 and 128"):
        command(launch(model, tmp_path, context_length=129), SGLangConfig())


def test_the_spec_is_obeyed(model: Path, tmp_path: Path) -> None:
    """Layout, concurrency, seed, dtype and version come from the spec."""
    made = launch(model, tmp_path, layout={"t": 2}, seed=9, dtype="bfloat16", context_length=64)
    argv = command(made, SGLangConfig()).argv

    assert [value(argv, name) for name in ("--tp-size", "--random-seed", "--dtype")] == ["2", "9", "bfloat16"]
    assert [value(argv, name) for name in ("--max-running-requests", "--weight-version")] == ["4", "0"]
    assert int(value(argv, "--context-length")) == 64 + SPARE_TOKENS


def test_replicas_draw_apart(model: Path, tmp_path: Path) -> None:
    """Requests have the same names in every server, and their streams are of name and seed."""
    seeds = [
        value(command(launch(model, tmp_path, seed=seed, replica=replica), SGLangConfig()).argv, "--random-seed")
        for seed, replica in ((3, 0), (3, 1), (3, 2), (4, 0), (2**31 - 1, 1), (2**40 + 3, 0))
    ]

    assert len(set(seeds)) == 6
    assert all(0 <= int(seed) < 2**31 for seed in seeds)


def test_what_differs_between_devices(model: Path, tmp_path: Path) -> None:
    """A CPU needs an attention backend and bounded memory; an accelerator has its own."""
    on_cpu = command(launch(model, tmp_path), SGLangConfig())
    on_cuda = command(launch(model, tmp_path, device="cuda"), SGLangConfig())

    assert value(on_cpu.argv, "--attention-backend") == "torch_native"
    assert on_cpu.environ["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "--attention-backend" not in on_cuda.argv
    assert "SGLANG_USE_CPU_ENGINE" not in on_cuda.environ


def test_replicas_on_a_cpu_have_cores_of_their_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas on the same core compute half as fast."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 3}, raising=False)
    bound = [
        command(launch(model, tmp_path, replica=number), SGLangConfig()).environ["SGLANG_CPU_OMP_THREADS_BIND"]
        for number in (0, 1, 5)
    ]

    assert bound == ["0", "1", "1"]


@pytest.mark.parametrize("argument", ["--api-key", "--host=0.0.0.0", "--trust_remote_code", "--speculative-algorithm"])
def test_arguments_that_would_break_a_promise_are_refused(argument: str) -> None:
    """The plan says so, not a server that behaves otherwise."""
    with pytest.raises(PlanError, match=argument.split("=")[0]):
        SGLangConfig(server_args=(argument,))


def test_other_arguments_are_passed_on(model: Path, tmp_path: Path) -> None:
    """They come last, so they win."""
    argv = command(launch(model, tmp_path), SGLangConfig(server_args=("--page-size", "16"))).argv

    assert argv[-2:] == ("--page-size", "16")


def test_cache_is_bounded_by_what_can_be_in_use(model: Path) -> None:
    """A tiny model would else take memory for millions of tokens."""
    spec = InferenceSpec(model_path=str(model), max_concurrent=4)

    assert cache_tokens(spec, 1.0, 128, 1) == 4 * (128 + SPARE_TOKENS)


def test_cache_is_bounded_by_memory(model: Path) -> None:
    """2 layers, 2 heads of 16 numbers, keys and values, 4 bytes: 512 bytes a token."""
    spec = InferenceSpec(model_path=str(model), max_concurrent=10**6)

    assert cache_tokens(spec, 0.001, 128, 1) == int(0.001 * 2**30) // 512


def test_the_server_sees_four_packages_and_an_entry_point(model: Path, tmp_path: Path) -> None:
    """The trainer's packages must not reach the engine; SGLang finds its plugin by the entry point."""
    site = Path(command(launch(model, tmp_path), SGLangConfig()).environ["PYTHONPATH"])
    found = [entry for each in importlib.metadata.distributions(path=[str(site)]) for entry in each.entry_points]

    packages = {item.name for item in site.iterdir() if item.is_symlink()}
    assert packages == {"areal_core", "areal_torch", "areal_serving", "areal_sglang"}
    assert [(entry.group, entry.value) for entry in found] == [
        ("sglang.srt.plugins", "areal_sglang.inside.hooks:register")
    ]


def test_temporary_files_go_with_the_folder(model: Path, tmp_path: Path) -> None:
    """SGLang leaves sockets and metric files behind."""
    assert Path(command(launch(model, tmp_path), SGLangConfig()).environ["TMPDIR"]).parent == tmp_path


def test_abilities_cost_nothing_unless_asked_for(model: Path, tmp_path: Path) -> None:
    """Adapters and sleep change how the model is built; on the CPU sleep does not."""
    plain = command(launch(model, tmp_path), SGLangConfig()).argv
    options = SGLangConfig(max_adapters=2, max_adapter_rank=8, sleep=True)
    rich, on_cpu = (command(launch(model, tmp_path, device=kind), options).argv for kind in ("cuda", "cpu"))

    assert not {"--enable-lora", "--enable-memory-saver"} & set(plain)
    assert {"--enable-lora", "--enable-memory-saver"} <= set(rich)
    assert "--enable-memory-saver" not in on_cpu
    assert value(rich, "--max-loras-per-batch") == "3"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_is_told_its_rank_and_where_the_leader_is(model: Path, tmp_path: Path, rank: int) -> None:
    """Whoever does not lead serves nobody, on loopback; its cores are counted for the ranks of its host."""
    part = ReplicaPart(rank=rank, num_hosts=2, host=f"10.0.0.{rank + 1}", leader="tcp://10.0.0.1:2345", key=KEY)
    made = command(launch(model, tmp_path, layout={"t": 4}, part=part), SGLangConfig())
    told = {name: value(made.argv, name) for name in ("--nnodes", "--node-rank", "--dist-init-addr", "--tp-size")}

    assert told == {"--nnodes": "2", "--node-rank": str(rank), "--dist-init-addr": "10.0.0.1:2345", "--tp-size": "4"}
    assert value(made.argv, "--host") == "127.0.0.1"
    assert made.environ["SGLANG_HOST_IP"] == f"10.0.0.{rank + 1}"
    assert made.environ["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 1
    assert not any(KEY in argument for argument in made.argv)
