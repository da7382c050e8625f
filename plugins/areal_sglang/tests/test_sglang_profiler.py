"""Steps traced by SGLang's own profiler: what it is asked, and one real server on the CPU.

make test-sglang
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_sglang.config import SGLangConfig
from areal_sglang.engine import SGLangEngine
from areal_sglang.profiler import SGLangProfiler
from areal_torch.profile import profile_variables
from areal_torch.testing.models import make_tiny_model
from areal_torch.testing.serving import FolderWeights, ask


def test_the_rank_is_found_in_the_name_of_a_file() -> None:
    """As SGLang's `profiler_manager` makes it."""
    match = SGLangProfiler.rank.search("1763856000.12-TP-3.trace.json.gz")

    assert match is not None and match[1] == "3"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_server_traces_the_steps_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step of three, from its weights on, as one file among the run's; a long one is traced in part."""
    for name, value in profile_variables({"steps": [1, 2]}, 3, tmp_path, "rollout").items():
        monkeypatch.setenv(name, value)
    model = make_tiny_model(tmp_path / "model", kind="qwen3", tied=False, max_position=512)

    async def run() -> list[int]:
        engine = SGLangEngine(SGLangConfig(max_restarts=0, kv_cache_gib=0.05))
        await engine.start(InferenceSpec(model_path=str(model), max_concurrent=4))
        try:
            versions = []
            for version in range(3):
                if version:
                    await engine.receive_weights(FolderWeights.of(model).offer(version), version)
                    await engine.pause(PauseMode.KEEP)
                    await engine.commit_weights(version)
                    await engine.resume()
                tokens = 230 if version == 0 else 8
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
    for path in made:
        assert path.stat().st_mode & 0o777 == 0o600
        with gzip.open(path, "rt") as file:
            names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
        assert names & {"aten::linear", "aten::mm", "aten::addmm"}, sorted(names)[:50]
