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
from areal_torch.profile import profile_variables
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights, ask
from areal_vllm.config import VLLMConfig
from areal_vllm.engine import VLLMEngine
from areal_vllm.profiler import VLLMProfiler, traced


def test_a_server_has_a_profiler_only_if_a_step_is_to_be_traced() -> None:
    """Its routes are there, and its cost, with one argument; the record of a long step ends by itself."""
    assert traced(None) == {}
    settings = json.loads(traced(Path("/private/traces"))["--profiler-config"] or "")
    assert (settings["profiler"], settings["torch_profiler_dir"]) == ("torch", "/private/traces")
    assert settings["max_iterations"] == 200
    assert settings["torch_profiler_with_stack"] is False


@pytest.mark.parametrize("name", ["dp0_pp0_tp1_dcp0_ep1_rank3", "rank3"])
def test_the_rank_is_found_in_the_name_of_a_file(name: str) -> None:
    """As `get_worker_rank_suffix` of vLLM 0.32 and torch's handler make it; the short one without experts."""
    match = VLLMProfiler.rank.search(f"{name}.1763856000123456789.pt.trace.json.gz")

    assert match is not None and match[1] == "3"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_server_traces_the_steps_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step of three, from its weights on, as one file among the run's; the server wrote nothing else."""
    for name, value in profile_variables({"steps": [2]}, 3, tmp_path, "rollout").items():
        monkeypatch.setenv(name, value)
    model = make_tiny_model(tmp_path / "model", hidden=32, head_dim=32, tied=False)

    async def run() -> list[int]:
        engine = VLLMEngine(VLLMConfig(kv_cache_gib=0.25))
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=4))
        try:
            versions = []
            for version in range(3):
                if version:
                    await engine.receive_weights(FolderWeights.of(model).offer(version), version)
                    await engine.pause(PauseMode.KEEP)
                    await engine.commit_weights(version)
                    await engine.resume()
                made = await engine.generate(ask(5, 9, 7, max_new_tokens=8, ignore_eos=True))
                versions.append(made.version_spans[0].version)
            return versions
        finally:
            await engine.close()

    assert asyncio.run(run()) == [0, 1, 2]

    made = [path for path in (tmp_path / "profile").rglob("*") if path.is_file()]
    assert [str(path.relative_to(tmp_path)) for path in made] == ["profile/step-2/rollout-rank0.json.gz"]
    assert made[0].stat().st_mode & 0o777 == 0o600
    with gzip.open(made[0], "rt") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert "aten::linear" in names or "aten::mm" in names, sorted(set(names))[:50]
    assert len({name for name in names if name.startswith("execute_")}) > 0, sorted(set(names))[:50]
