"""Steps traced by vLLM's own profiler: how a server is told, and one real server on the CPU.

make test-vllm
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_serving.dialect import Launch
from areal_torch.profile import profile_variables
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights, ask
from areal_vllm.command import arguments
from areal_vllm.config import VLLMConfig
from areal_vllm.engine import VLLMEngine
from areal_vllm.profiler import VLLMProfiler

from .recorded import ScriptedApi

FOLDER = Path("/private/traces")
NOTHING_COMPUTED = "execute_context_0(0)_generation_0(0)"
"""How vLLM calls the pass in which workers only hear that a request ended."""


def told(traces: Path | None, device: str = "cpu") -> tuple[str, ...]:
    """Return the arguments of a server that is to be traced into a folder."""
    spec = InferenceSpec(model_path="/models/m", device=device)
    launch = Launch(spec=spec, python="/env/bin/python", port=4711, key="key", folder=FOLDER.parent, traces=traces)
    return arguments(launch, VLLMConfig())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_server_has_a_profiler_only_if_a_step_is_to_be_traced(device: str) -> None:
    """Its routes are there, and its cost, with one argument; the record of a long step ends by itself."""
    argv = told(FOLDER, device)
    settings = json.loads(argv[argv.index("--profiler-config") + 1])

    assert "--profiler-config" not in told(None, device)
    assert (settings["profiler"], settings["torch_profiler_dir"]) == ("torch", str(FOLDER))
    assert settings["max_iterations"] == 50
    assert settings["torch_profiler_with_stack"] is False


def test_a_server_on_an_npu_has_none() -> None:
    """What vLLM-Ascend's profiler writes is no trace of torch's."""
    assert "--profiler-config" not in told(FOLDER, "npu")


def test_a_record_begins_and_ends_by_vllms_routes() -> None:
    """Which answer with nothing."""
    api = ScriptedApi({"/start_profile": None, "/stop_profile": None})

    async def record() -> None:
        await VLLMProfiler().start(api, FOLDER)
        await VLLMProfiler().stop(api, FOLDER)

    asyncio.run(record())

    assert [path for path, _ in api.asked] == ["/start_profile", "/stop_profile"]


@pytest.mark.parametrize("name", ["dp0_pp0_tp1_dcp0_ep1_rank3", "rank3"])
def test_the_rank_is_found_in_the_name_of_a_file(name: str) -> None:
    """As `get_worker_rank_suffix` of vLLM 0.32 and torch's handler make it; the short one without its groups."""
    match = VLLMProfiler.rank.search(f"{name}.1763856000123456789.pt.trace.json.gz")

    assert match is not None and match[1] == "3"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_server_traces_the_steps_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two of three, each as one file among the run's; a long one is traced in part."""
    for name, value in profile_variables({"steps": [1, 2]}, 3, tmp_path, "rollout").items():
        monkeypatch.setenv(name, value)
    model = make_tiny_model(tmp_path / "model", hidden=32, head_dim=32, tied=False, max_position=512)

    async def run() -> list[int]:
        engine = VLLMEngine(VLLMConfig(max_restarts=0, kv_cache_gib=0.25))
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=4))
        try:
            versions = []
            for version in range(3):
                if version:
                    await engine.receive_weights(FolderWeights.of(model).offer(version), version)
                    await engine.pause(PauseMode.KEEP)
                    await engine.commit_weights(version)
                    await engine.resume()
                tokens = 90 if version == 0 else 8
                made = await engine.generate(ask(5, 9, 7, max_new_tokens=tokens, ignore_eos=True))
                versions.append(made.version_spans[0].version)
            return versions
        finally:
            await engine.close()

    assert asyncio.run(run()) == [0, 1, 2]

    made = sorted(path for path in (tmp_path / "profile").rglob("*") if path.is_file())
    assert [str(path.relative_to(tmp_path / "profile")) for path in made] == [
        "step-1/rollout-rank0.json.gz",
        "step-2/rollout-rank0.json.gz",
    ]
    for path, passes in zip(made, (50, 8), strict=True):
        assert path.stat().st_mode & 0o777 == 0o600
        with gzip.open(path, "rt") as file:
            names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
        assert any(name.startswith("aten::") for name in names), sorted(set(names))[:50]
        found = [name for name in names if name.startswith("execute_context_") and name != NOTHING_COMPUTED]
        assert 0 < len(found) <= passes, found
