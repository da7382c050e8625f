"""The quickstart's starting model: a tiny one, fine-tuned on a sloppy annotator, made once and cached.

Knows: the demonstrations, the recipe, where the result is kept.
Does not know: what reinforcement learning does with it afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attrs import asdict, field, frozen

from areal_core.contract.scheduler import Job, Scheduler
from areal_core.contract.train import OptimizerSpec, RankContext, TrainSpec
from areal_core.loop.train_group import TrainGroup
from areal_core.plugins.registry import Registry
from areal_tasks.datasets.spell import SpellConfig, demonstration, long_spell, spell
from areal_tasks.sft import Demonstration, fine_tune
from areal_tasks.smollm2 import default_cache
from areal_tasks.tiny import make_spell_model

_FIRST_ROW = 50_000_000
"""Demonstrations come from a range of the training split that no run of ours reaches."""
_STEP_TIMEOUT_S = 300.0


@frozen(kw_only=True)
class Recipe:
    """How a starting model is made; the cache is keyed by every field."""

    task: str
    steps: int
    batch_size: int = 64
    seed: int = 1
    head_dim: int = 32
    """Of the model (`areal_tasks.tiny`): another one is another starting point."""
    optimizer: OptimizerSpec = field(
        default=OptimizerSpec(lr=3e-3, weight_decay=0.01, warmup_steps=20, schedule="linear", min_lr_ratio=0.1)
    )

    @property
    def digest(self) -> str:
        """Return a short name for these settings."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


RECIPES: Mapping[str, Recipe] = {
    "spell": Recipe(task="spell", steps=900),
    "long_spell": Recipe(task="long_spell", steps=2000),
}


def cached_model(recipe: Recipe) -> Path | None:
    """Return the finished model, if it was made before."""
    folder = _folder(recipe)
    return folder if (folder / "config.json").exists() else None


async def warm_start(recipe: Recipe, registry: Registry, on_step: Callable[[int, int, float], None]) -> Path:
    """Return the starting model of a recipe, fine-tuning it first if it is not cached.

    One reference trainer in a worker process of its own, on the CPU, with every core.
    `on_step` hears step, number of steps and loss.
    """
    cached = cached_model(recipe)
    if cached is not None:
        return cached
    target = _folder(recipe)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        start = make_spell_model(Path(scratch) / "start", recipe.seed)
        scheduler = registry.build("scheduler", "local", {"log_dir": scratch})
        assert isinstance(scheduler, Scheduler)
        try:
            group = await _start_trainer(scheduler, recipe, start)
            await fine_tune(group, _batches(recipe, start), lambda step, loss: on_step(step, recipe.steps, loss))
            await group.save_weights(target)
        finally:
            await scheduler.close()
    return target


async def _start_trainer(scheduler: Scheduler, recipe: Recipe, start: Path) -> TrainGroup:
    job = Job(
        role="warm-start",
        engine_role="train",
        backend="reference",
        num_workers=1,
        cpus_per_worker=os.cpu_count() or 1,
    )
    workers = await scheduler.submit(job)
    group = TrainGroup("warm-start", workers, timeout_s=_STEP_TIMEOUT_S)
    optimizer = OptimizerSpec(**{**asdict(recipe.optimizer), "total_steps": recipe.steps})
    spec = TrainSpec(role="warm-start", model_path=str(start), optimizer=optimizer, seed=recipe.seed)
    address = await workers[0].call("rendezvous", workers[0].host, True, timeout_s=_STEP_TIMEOUT_S)
    rank = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=str(address))
    await group.start(spec, [rank], timeout_s=_STEP_TIMEOUT_S)
    return group


def _batches(recipe: Recipe, model: Path) -> Iterator[list[Demonstration]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = {"spell": spell, "long_spell": long_spell}[recipe.task](SpellConfig(seed=recipe.seed, size=100_000_000))
    rng = random.Random(recipe.seed)
    index = _FIRST_ROW
    for _ in range(recipe.steps):
        batch = []
        for _ in range(recipe.batch_size):
            row = rows[index]
            prompt = tokenizer.encode(row["prompt"], add_special_tokens=False)
            answer = tokenizer.encode(demonstration(row, rng), add_special_tokens=False)
            batch.append(Demonstration(prompt_ids=prompt, answer_ids=[*answer, tokenizer.eos_token_id]))
            index += 1
        yield batch


def _folder(recipe: Recipe) -> Path:
    return default_cache() / f"{recipe.task}-{recipe.digest}"
