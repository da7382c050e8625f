"""The quickstart's starting model: a tiny one, fine-tuned on a sloppy annotator, made once and cached.

Knows: the recipe, where the result is kept.
Does not know: what is demonstrated (`demonstrations`), or what reinforcement learning does with it afterwards.
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
from areal_tasks.quickstart.demonstrations import show
from areal_tasks.sft import Demonstration, fine_tune
from areal_tasks.smollm2 import default_cache
from areal_tasks.tiny import make_spell_model
from areal_tasks.tiny_chat import make_chat_model

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
    "spell_again": Recipe(task="spell_again", steps=800, batch_size=32),
    "sums": Recipe(task="sums", steps=600, batch_size=16),
}
CHATS = ("spell_again", "sums")
"""Tasks of the chat model; the others are of the model that spells."""


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
        make = make_chat_model if recipe.task in CHATS else make_spell_model
        start = make(Path(scratch) / "start", recipe.seed)
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

    shown, rng = show(recipe.task, recipe.seed, AutoTokenizer.from_pretrained(model)), random.Random(recipe.seed)
    for step in range(recipe.steps):
        first = _FIRST_ROW + step * recipe.batch_size
        yield [each for index in range(first, first + recipe.batch_size) for each in shown(index, rng)]


def _folder(recipe: Recipe) -> Path:
    return default_cache() / f"{recipe.task}-{recipe.digest}"
