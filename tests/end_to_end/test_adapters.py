"""Runs with adapters beside the policy: asked by name from yaml, never trained on, there on every replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from areal_conformance.oracles.adapters import write_adapter
from areal_core.contract.errors import CapabilityError, EpisodeFailed
from areal_core.contract.inference import Generation, GenerationRequest
from areal_core.observe.jsonl import read_lines
from areal_episodes.reader import Reader
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_torch.testing.serving import FolderWeights

from .live_run import command, live_run
from .one_process import settle_here, train_here

LORA = "actor.lora={rank: 2, alpha: 4, targets: [q_proj]}"


@pytest.fixture
def words(tmp_path: Path, model: Path) -> tuple[str, ...]:
    """What a run is told to have its answers criticised by an adapter of its model."""
    folder, weights = tmp_path / "critic", FolderWeights.of(model).tensors
    write_adapter(folder, weights, rank=2, alpha=8.0, targets=("q_proj", "o_proj"), seed=1)
    options = "{adapter: critic, question: '{prompt}{answer}>', again: '>'}"
    return (
        "rollout.workflow.name=critique",
        f"rollout.workflow.options={options}",
        f"rollout.adapters={{critic: {folder}}}",
    )


@pytest.mark.parametrize("more", [(), (LORA,)], ids=["whole-weights", "beside-a-trained-adapter"])
def test_a_critic_beside_the_policy(
    tmp_path: Path, model: Path, words: tuple[str, ...], more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both answers of every episode are trained on; what the critic said is of version 0 and is not."""
    settle_here(monkeypatch)
    seen: list[tuple[str, Generation]] = []
    generate = ReferenceInferenceEngine.generate

    async def watched(self: Any, request: GenerationRequest) -> Generation:
        made = await generate(self, request)
        seen.append((request.adapter, made))
        return made

    monkeypatch.setattr(ReferenceInferenceEngine, "generate", watched)

    train_here(tmp_path / "run", model, *words, *more)

    theirs = [made for adapter, made in seen if adapter == "critic"]
    assert {adapter for adapter, _ in seen} == {"", "critic"} and len(theirs) >= 16
    assert {span.version for made in theirs for span in made.version_spans} == {0}
    ours = {made.output_ids: made.logprobs for adapter, made in seen if not adapter}
    with Reader(tmp_path / "run") as reader:
        trained = [one for step in range(1, 5) for _, every in reader.trained(step) for one in every]
    assert len(trained) == 16
    for trajectory in trained:
        mask = trajectory.loss_mask.tolist()
        starts = [n for n, on in enumerate(mask) if on and not mask[n - 1]]
        ends = [n + 1 for n, on in enumerate(mask) if on and not (mask[n + 1 :] or [False])[0]]
        turns = [tuple(trajectory.input_ids[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]
        assert len(turns) == 2 and set(turns) <= set(ours)
    versions = {version for trajectory in trained for version in trajectory.versions[trajectory.loss_mask].tolist()}
    assert max(versions) >= 2


def test_an_adapter_that_the_run_does_not_have_is_named(
    tmp_path: Path, model: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with its name, those there are, and the key."""
    settle_here(monkeypatch)

    with pytest.raises((CapabilityError, EpisodeFailed), match=r"adapter 'nobody' is not loaded") as told:
        train_here(tmp_path / "run", model, *words, "rollout.workflow.options.adapter=nobody")

    assert "loaded are critic" in str(told.value) and "rollout.adapters" in str(told.value)


@pytest.mark.slow
def test_a_replacement_serves_the_adapters_too(tmp_path: Path, model: Path, words: tuple[str, ...]) -> None:
    """The only replica is killed; the one that takes its place answers for the critic, and no episode fails."""
    folder = tmp_path / "run"
    small = ("steps=8", "rollout.prompts_per_step=4", "rollout.group_size=2", "evaluation.data=null")
    with live_run(command(folder, model, *small, *words), folder) as run:
        run.wait_for_step(3)
        run.worker("rollout").kill()
        code, output = run.wait()

        assert code == 0, output
        kinds = [event["kind"] for event in read_lines(folder / "events.jsonl")]
        assert "replica_joined" in kinds and "group_failed" not in kinds
        assert len(run.steps()) == 8 and run.survivors() == []
