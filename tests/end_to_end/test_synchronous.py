"""Law 3: `max_staleness=0` is the synchronous trainer, bit for bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from areal_algorithms.columns import make_columns
from areal_core.algorithms.plan import objective_spec
from areal_core.config.load import load_config
from areal_core.config.model_folder import load_tokenizer
from areal_core.config.schema import RunConfig
from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode
from areal_core.contract.ids import GroupId, RequestId, TaskId
from areal_core.contract.inference import GenerationRequest, InferenceSpec, SamplingParams
from areal_core.contract.train import RankContext, TrainSpec
from areal_core.contract.trajectory import from_generation
from areal_core.plugins.registry import default_registry
from areal_core.rollout.session import derive_seed
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.rewards.gym import ReasoningGym, ReasoningGymConfig
from areal_torch.testing.memory_weights import MemorySink, MemorySource

from .live_run import command, live_run

pytest.importorskip("areal_reference")

STEPS, PROMPTS, GROUP = 4, 4, 4
SETTINGS = (
    f"steps={STEPS}",
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.group_size={GROUP}",
    "rollout.max_staleness=0",
    "rollout.options.deterministic=true",
    "actor.backend=reference:d1",
    "evaluation.every_steps=0",
    "rollout.reward.options.exact=false",
)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_staleness_zero_is_a_plain_synchronous_loop_bit_for_bit(tmp_path: Path, model: Path, processes: int) -> None:
    """Same rewards at every step, same weights at the end, though one side is many processes and a scheduler."""
    folder = tmp_path / "run"
    with live_run(command(folder, model, *SETTINGS, f"rollout.processes={processes}"), folder) as run:
        code, output = run.wait()
    assert code == 0, output
    config = load_config(preset_path("spell"), [f"model.path={model}", *SETTINGS])

    rewards = _plain_loop(config, tmp_path / "plain")

    assert len(set(rewards)) > 1, "nothing was learned from"
    assert [record["reward"] for record in run.steps()] == rewards
    (checkpoint,) = (folder / "checkpoints").iterdir()
    theirs = load_file(checkpoint / "model" / "model.safetensors")
    ours = load_file(tmp_path / "plain" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    start = load_file(model / "model.safetensors")
    assert not all(torch.equal(start[name], ours[name]) for name in ours), "the weights never changed"


def _plain_loop(config: RunConfig, out: Path) -> list[float]:
    """Generate, train, copy the weights; one request after the other, nothing at once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return asyncio.run(_plain(config, out))
    finally:
        torch.set_num_threads(threads)


async def _plain(config: RunConfig, out: Path) -> list[float]:
    registry = default_registry()
    rows = registry.build("dataset", config.data.name, config.data.options)
    scorer = ReasoningGym(ReasoningGymConfig(exact=False))
    tokenizer = load_tokenizer(Path(config.model.path))
    objective = objective_spec(config.algorithm)
    loss = registry.build("objective", objective.name, objective.config)
    trainer = registry.build("train", "reference")
    trainer.start(
        TrainSpec(role="actor", model_path=config.model.path, optimizer=config.actor.optimizer, seed=config.seed),
        RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=""),
    )
    generator = registry.build("infer", "reference", config.rollout.options)
    await generator.start(InferenceSpec(model_path=config.model.path, max_concurrent=PROMPTS * GROUP))
    rewards = []
    columns = make_columns(config.algorithm, registry, max_new_tokens=config.rollout.sampling.max_new_tokens)
    for version in range(STEPS):
        episodes = []
        for index in range(version * PROMPTS, (version + 1) * PROMPTS):
            for member in range(GROUP):
                episodes.append(await _episode(index, member, rows[index], config, generator, scorer, tokenizer))
        rewards.append(sum(e.trajectories[0].reward for e in episodes) / len(episodes))
        batch, _ = columns(Batch.pack(episodes), version)
        trainer.train_step(batch, loss)
        trainer.version = version + 1
        sink = MemorySink()
        trainer.send_weights(sink, version + 1)
        await generator.receive_weights(MemorySource(sink), version + 1)
        await generator.commit_weights(version + 1)
    await generator.close()
    trainer.save_weights(out)
    trainer.close()
    return rewards


async def _episode(index, member, row, config, generator, scorer, tokenizer):  # type: ignore[no-untyped-def]
    sampling: SamplingParams = config.rollout.sampling
    name = f"train/0/{index}"
    seed = derive_seed(config.seed, f"{name}#{member}.0", 0)
    prompt_ids = tokenizer.encode(row["prompt"])
    request = GenerationRequest(
        request_id=RequestId(f"{name}#{member}"),
        input_ids=tuple(prompt_ids),
        sampling=SamplingParams(max_new_tokens=sampling.max_new_tokens, temperature=sampling.temperature, seed=seed),
    )
    generation = await generator.generate(request)
    text = tokenizer.decode(generation.output_ids, skip_special_tokens=True)
    reward = scorer(row["prompt"], text, generation.output_ids, str(generation.stop_reason), row)
    trajectory = from_generation(prompt_ids, generation, reward)
    return Episode(trajectories=(trajectory,), task_id=TaskId(name), group_id=GroupId(name))
