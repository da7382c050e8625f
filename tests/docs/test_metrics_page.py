"""Every number of a step is on the page that says what the numbers are."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import attrs
import torch

from areal_algorithms.advantages import compute_advantages
from areal_algorithms.estimators.gae import GAE, GAEConfig
from areal_algorithms.objectives.ppo import PPOConfig, PPOObjective
from areal_core.algorithms.config import AdvantageConfig, OverlongConfig
from areal_core.algorithms.sums import means
from areal_core.contract.train import TrainReport
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.loop.learner import Update
from areal_core.loop.step_record import StepTimes, Totals, step_record
from areal_core.rollout.groups import EpisodeGroup
from areal_core.rollout.stats import RolloutStats
from areal_core.rollout.tasks import Task
from areal_report.glossary.entries import METRICS
from areal_report.watch.judge import make_watch
from areal_torch.testing.batches import make_batch, make_episode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/metrics.md").read_text()


def test_every_number_is_on_the_page() -> None:
    """Of a step with a critic, a reference model, fresh tokens and an overlong penalty; an extreme with its mean."""
    batch = make_batch([(2, 3), (1, 5)], group_size=2)
    zeros = torch.zeros(batch.num_tokens)
    batch = batch.with_tokens(
        values=zeros, reference_logprobs=zeros, proximal_logprobs=zeros, fresh=batch.tokens["loss_mask"]
    )
    config = AdvantageConfig(overlong=OverlongConfig(tokens=4))
    batch, metrics = compute_advantages(batch, config, GAE(GAEConfig()), max_new_tokens=8)
    objective = PPOObjective(PPOConfig())
    columns = dict.fromkeys(objective.outputs, zeros - 1.0)
    sums = {**metrics, **objective.loss(columns, batch, objective.normalizer(batch))[1]}
    report = TrainReport(loss=0.0, grad_norm=1.0, lr=0.1, stepped=True, num_microbatches=1, num_tokens=5, seconds=0.1)
    update = Update(reports=[report], batch=batch, metrics=sums)
    weights = WeightUpdate(version=1, num_tensors=2, num_bytes=8, unchanged=0, seconds=0.0, phases={})
    stats = RolloutStats(**{field.name: 0 for field in attrs.fields(RolloutStats)})  # type: ignore[arg-type]
    task = Task(index=0, task_id="t", row={})  # type: ignore[arg-type]
    groups = [EpisodeGroup(task=task, episodes=(make_episode(),) * 2, num_generated=3, oldest_versions=(0, 0))]
    record = step_record(1, groups, update, weights, StepTimes(lambda _: None), Totals(), stats, {})

    make_watch({}, print, print)(record, [group.episodes for group in groups])

    assert {"train/entropy", "train/explained_variance", "train/engine_gap"} <= means(sums).keys() | record.keys()
    names = {name: re.sub("_(std|min|max)$", "", name) for name in record}
    missing = [name for name, base in names.items() if f"`{name}`" not in PAGE and f"`{base}`" not in PAGE]
    assert not missing, f"docs/reference/metrics.md does not say what these are: {missing}"


def test_the_tables_are_those_of_the_glossary() -> None:
    """Made again, the page does not change; `python docs/metrics_page.py` renews it."""
    made = runpy.run_path(str(ROOT / "docs/metrics_page.py"))

    assert made["page"](PAGE) == PAGE
    assert {metric.section for metric in METRICS} == set(re.findall(r"<!-- metrics: (?!end)([^>]+) -->", PAGE))
