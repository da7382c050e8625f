"""One batch into one version, with every role there can be, on real engines in this process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file

from areal_algorithms.columns import Columns, make_columns
from areal_core.algorithms.config import (
    AdvantageConfig,
    AlgorithmConfig,
    BehaviourConfig,
    BehaviourWeight,
    KLConfig,
    Proximal,
)
from areal_core.algorithms.plan import critic_spec, objective_spec
from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, Head, OptimizerSpec, RankContext, Sum, TrainReport, TrainSpec
from areal_core.fleet.weight_sync import WeightUpdate
from areal_core.loop.learner import Learner, Update
from areal_core.loop.step_record import StepTimes, Totals, step_record
from areal_core.loop.train_group import TrainGroup
from areal_core.plugins.registry import default_registry
from areal_core.rollout.stats import RolloutStats
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model
from areal_worker.service import Place, TrainHost

pytest.importorskip("areal_reference")

EVERYTHING = AlgorithmConfig(
    minibatches=3,
    proximal=Proximal.RECOMPUTE,
    behaviour=BehaviourConfig(mode=BehaviourWeight.CLAMP),
    advantages=AdvantageConfig(kl=KLConfig(coefficient=0.1), gamma=0.99, lam=0.95),
)


def columns(algorithm: AlgorithmConfig) -> Columns:
    """Return what a run gives its learner."""
    return make_columns(algorithm, default_registry(), max_new_tokens=16)


class InProcess:
    """A worker without a process: what `runtime.hosts` does with a call, and the calls made."""

    host = "127.0.0.1"

    def __init__(self, role: str) -> None:
        self.id = f"{role}/0"
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._host = TrainHost(Place(worker=self.id, backend="reference"))

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        self.calls.append((method, args))
        return await self._host.call(method, args)

    def versions(self) -> list[int]:
        """Return what it was told of versions."""
        return [args[0] for method, args in self.calls if method == "set_version"]


async def _group(role: str, model: Path, head: Head, optimizer: OptimizerSpec | None) -> TrainGroup:
    group = TrainGroup(role, [InProcess(role)], timeout_s=60.0)
    spec = TrainSpec(role=role, model_path=str(model), head=head, optimizer=optimizer)
    rank = RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method="")
    await group.start(spec, [rank], timeout_s=60.0)
    return group


def test_every_role_takes_part_and_what_is_trained_knows_its_version(tmp_path: Path) -> None:
    """Old log-probs and values come before the first of three steps; actor and critic move on, the reference stays."""
    make_tiny_model(tmp_path / "model")

    async def test() -> None:
        actor = await _group("actor", tmp_path / "model", Head.CAUSAL_LM, OptimizerSpec(lr=1e-3))
        critic = await _group("critic", tmp_path / "model", Head.VALUE, OptimizerSpec(lr=1e-3))
        reference = await _group("reference", tmp_path / "model", Head.CAUSAL_LM, None)
        learner = Learner(
            EVERYTHING,
            objective_spec(EVERYTHING),
            actor,
            columns(EVERYTHING),
            reference=reference,
            critic=critic,
            critic_objective=critic_spec(EVERYTHING),
        )
        batch = make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2)])
        update = await learner.update(batch, 4)

        steps = ["forward", *3 * ["train_step"], "set_version"]
        workers = [group.workers[0] for group in (actor, critic, reference)]
        assert [[name for name, _ in worker.calls[1:]] for worker in workers] == [steps, steps, ["forward"]]
        parts, same = (
            [args[0].num_tokens for name, args in worker.calls if name == "train_step"] for worker in workers[:2]
        )
        assert parts == same and sum(parts) == batch.num_tokens, "the critic learns from the actor's minibatches"
        assert [worker.versions() for worker in workers] == [[5], [5], []]
        assert [report.stepped for report in update.reports] == [True] * 3
        assert {"reference_kl", "behaviour_weight", "critic/loss", "critic/grad_norm"} <= update.metrics.keys()
        assert update.metrics["critic/grad_norm"].weight == 3 and update.metrics["critic/grad_norm"].value > 0
        for worker in workers:
            await worker.call("close", timeout_s=60.0)

    asyncio.run(test())


def test_ratios_cost_a_forward_pass_and_change_nothing(tmp_path: Path) -> None:
    """The trainer's log-probs before the step are in the batch; loss and every number of the step are as without."""
    make_tiny_model(tmp_path / "model")
    algorithm = AlgorithmConfig(minibatches=2)

    async def update(*, ratios: bool) -> tuple[Update, list[str]]:
        actor = await _group("actor", tmp_path / "model", Head.CAUSAL_LM, OptimizerSpec(lr=1e-3))
        learner = Learner(algorithm, objective_spec(algorithm), actor, columns(algorithm), ratios=ratios)
        done = await learner.update(make_batch([(2, 3), (1, 5), (4, 9), (3, 1)]), 4)
        await actor.workers[0].call("close", timeout_s=60.0)
        return done, [name for name, _ in actor.workers[0].calls[1:-1]]

    (plain, without), (same, calls) = (asyncio.run(update(ratios=wanted)) for wanted in (False, True))

    assert calls == ["forward", *without]
    assert [attrs.evolve(each, seconds=0.0) for each in same.reports] == [
        attrs.evolve(each, seconds=0.0) for each in plain.reports
    ]
    assert "policy_logprobs" not in plain.batch.tokens
    mask = same.batch.tokens["loss_mask"]
    assert (same.batch.tokens["policy_logprobs"][mask] < 0).all()


class Reporting:
    """A train group that gives these reports, one a step, and keeps the batches it was given."""

    def __init__(self, *steps: tuple[float, float, bool], details: Mapping[str, str]) -> None:
        self.info = EngineInfo(
            engine="fake", engine_version="1", device="cpu", num_parameters=1, context_length=8, details=details
        )
        self._steps = list(steps)
        self.batches: list[Batch] = []

    async def train_step(self, batch: Batch, _objective: object) -> TrainReport:
        loss, norm, stepped = self._steps[len(self.batches)]
        self.batches.append(batch)
        return TrainReport(
            loss=loss, grad_norm=norm, lr=0.1, stepped=stepped, num_microbatches=1, num_tokens=1, seconds=0.5,
            metrics={"ratio": Sum(value=loss, weight=2.0), "ratio_max": Sum(value=loss, weight=1.0)},
        )  # fmt: skip

    async def forward(self, batch: Batch, _outputs: object) -> torch.Tensor:
        return torch.zeros(batch.num_tokens)

    async def set_version(self, version: int) -> None:
        """Nothing depends on it."""


def _reported(
    *steps: tuple[float, float, bool], version: int = 4, details: Mapping[str, str] | None = None
) -> tuple[Update, Reporting]:
    algorithm = AlgorithmConfig(minibatches=len(steps))
    group = Reporting(*steps, details=details or {})
    learner = Learner(algorithm, objective_spec(algorithm), group, columns(algorithm))  # type: ignore[arg-type]
    shapes = [(2, 3), (1, 5), (4, 9)][: len(steps)]
    return asyncio.run(learner.update(make_batch(shapes), version)), group


def _record(*steps: tuple[float, float, bool]) -> Mapping[str, Any]:
    """Return what is written about one step of these minibatches."""
    update, _ = _reported(*steps)
    weights = WeightUpdate(version=5, num_tensors=2, num_bytes=8, unchanged=0, seconds=0.0, phases={})
    stats = RolloutStats(**{field.name: 0 for field in attrs.fields(RolloutStats)})  # type: ignore[arg-type]
    return step_record(5, [], update, weights, StepTimes(lambda _: None), Totals(), stats, {})


def test_the_numbers_of_a_step_are_of_all_its_minibatches() -> None:
    """Loss and gradient norm are means over the steps taken, with the largest norm; sums add, extremes do not."""
    record = _record((1.0, 2.0, True), (2.0, 8.0, True), (6.0, 5.0, True))

    assert (record["loss"], record["grad_norm"], record["grad_norm_max"]) == (3.0, 5.0, 8.0)
    assert (record["stepped"], record["skipped_steps"]) == (True, 0)
    assert (record["train/ratio"], record["train/ratio_max"]) == (1.5, 6.0)


def test_a_minibatch_that_was_skipped_is_counted_and_not_averaged_in() -> None:
    """Though a later one was taken; where none was, the norms seen are told."""
    one = _record((1.0, 2.0, True), (math.nan, math.inf, False), (3.0, 4.0, True))
    none = _record((math.nan, math.inf, False))

    assert (one["loss"], one["grad_norm"], one["grad_norm_max"]) == (2.0, 3.0, 4.0)
    assert (one["stepped"], one["skipped_steps"]) == (False, 1)
    assert math.isnan(none["loss"]) and none["grad_norm"] == math.inf


def test_epochs_go_through_the_same_minibatches_and_make_one_version() -> None:
    """Columns are computed once, so the proximal policy stays that of the first pass."""
    algorithm = AlgorithmConfig(minibatches=2, epochs=3, proximal=Proximal.LOGLINEAR)
    group = Reporting(*[(1.0, 1.0, True)] * 6, details={})
    learner = Learner(algorithm, objective_spec(algorithm), group, columns(algorithm))  # type: ignore[arg-type]

    update = asyncio.run(learner.update(make_batch([(2, 3), (1, 5), (4, 9)]), 7))

    alphas = [batch.tokens["proximal_alpha"].tolist() for batch in group.batches]
    assert len(update.reports) == algorithm.updates == 6
    assert alphas == [*alphas[:2]] * 3
    assert [bool(batch.tokens["fresh"].any()) for batch in group.batches[2:]] == [False] * 4


def test_a_critic_takes_a_step_for_each_of_the_actors_in_every_epoch() -> None:
    """Its schedule counts them all, and advantages are taken from values that kept up."""
    algorithm = AlgorithmConfig(minibatches=2, epochs=3)
    actor, critic = (Reporting(*[(1.0, 1.0, True)] * 6, details={}) for _ in range(2))
    learner = Learner(
        algorithm,
        objective_spec(algorithm),
        actor,  # type: ignore[arg-type]
        lambda batch, *_: (batch, {}),
        critic=critic,  # type: ignore[arg-type]
        critic_objective=critic_spec(algorithm),
    )

    asyncio.run(learner.update(make_batch([(2, 3), (1, 5), (4, 9)]), 7))

    ids = [[batch.tokens["input_ids"].tolist() for batch in group.batches] for group in (actor, critic)]
    assert ids[0] == ids[1] and len(ids[1]) == 6


def test_a_group_is_whole_in_one_minibatch() -> None:
    """However its members' lengths would be shared out better."""
    algorithm = AlgorithmConfig(minibatches=2)
    group = Reporting(*[(1.0, 1.0, True)] * 2, details={})
    learner = Learner(algorithm, objective_spec(algorithm), group, columns(algorithm))  # type: ignore[arg-type]

    asyncio.run(learner.update(make_batch([(2, 30), (2, 1), (2, 2)], group_size=2), 7))

    members = [batch.sequences["group"].tolist() for batch in group.batches]
    assert sorted(map(sorted, members)) == [[0, 0], [1, 1, 2, 2]]


def test_a_step_of_fewer_groups_than_minibatches_takes_one_step_for_each_group() -> None:
    """As a dynamic batch may have."""
    algorithm = AlgorithmConfig(minibatches=8)
    group = Reporting(*[(1.0, 1.0, True)] * 8, details={})
    learner = Learner(algorithm, objective_spec(algorithm), group, columns(algorithm))  # type: ignore[arg-type]

    update = asyncio.run(learner.update(make_batch([(2, 3), (1, 5), (4, 9)]), 7))

    assert len(update.reports) == 3
    assert [batch.num_sequences for batch in group.batches] == [1, 1, 1]


def test_a_minibatch_left_without_a_token_is_skipped() -> None:
    """What is taken out of the loss may be all a minibatch has; the others are trained on."""
    algorithm = AlgorithmConfig(minibatches=3)
    group = Reporting(*[(1.0, 1.0, True)] * 3, details={})

    def masked(batch: Batch, *_: object) -> tuple[Batch, dict[str, Sum]]:
        mask = batch.tokens["loss_mask"] & (batch.sequence_ids != 1)
        return batch.with_tokens(loss_mask=mask), {}

    learner = Learner(algorithm, objective_spec(algorithm), group, masked)  # type: ignore[arg-type]
    update = asyncio.run(learner.update(make_batch([(2, 3), (1, 5), (4, 9)]), 7))

    assert len(update.reports) == 2
    assert all(batch.tokens["loss_mask"].any() for batch in group.batches)


def test_only_the_first_minibatch_compares_trainer_and_engine() -> None:
    """From then on the trainer has other weights than any engine had; a stale token compares nothing at all."""
    shapes = [(2, 3), (1, 5), (4, 9)]
    version = int(make_batch(shapes).tokens["versions"].max())

    _, group = _reported(*[(1.0, 1.0, True)] * 3, version=version)
    _, stale = _reported((1.0, 1.0, True), version=version + 1)

    marked = [int(batch.tokens["fresh"].sum()) for batch in group.batches]
    assert marked[0] > 0 and marked[1:] == [0, 0]
    assert not stale.batches[0].tokens["fresh"].any()


def test_the_share_of_peak_is_of_the_steps_alone_and_only_where_the_engine_knows_its_peak() -> None:
    """Of two minibatches of half a second each, where forty tokens a second are the most."""
    known, _ = _reported((1.0, 1.0, True), (1.0, 1.0, True), details={"peak_tokens_per_s": "40.0"})
    unknown, _ = _reported((1.0, 1.0, True), (1.0, 1.0, True))

    assert known.metrics["peak_share"] == Sum(value=known.batch.num_tokens, weight=40.0)
    assert "peak_share" not in unknown.metrics


_ADDED = {"loss", "clip_fraction", "importance_weight", "behaviour_weight", "surprisal", "policy_ratio_square"}
"""Numbers of the actor's objective that are sums over tokens."""


def _learnt(model: Path, algorithm: AlgorithmConfig, *, lr: float, times: int = 1) -> tuple[Update, Mapping[str, Any]]:
    """Return the last update of several on one batch, and the weights it leaves."""

    async def learnt() -> tuple[Update, Mapping[str, Any]]:
        actor = await _group("actor", model, Head.CAUSAL_LM, OptimizerSpec(lr=lr))
        learner = Learner(algorithm, objective_spec(algorithm), actor, columns(algorithm))
        batch = make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (2, 12)], group_size=2, version=4)
        for _ in range(times):
            update = await learner.update(batch, 4)
        folder = model.parent / f"{algorithm.minibatches}-{algorithm.epochs}-{times}"
        await actor.save_weights(folder)
        await actor.workers[0].call("close", timeout_s=60.0)
        return update, load_file(folder / "model.safetensors")

    return asyncio.run(learnt())


def test_minibatches_of_any_number_of_epochs_add_up_to_the_whole(tmp_path: Path) -> None:
    """Where no step moves the weights: every sum of one minibatch is the sum over many, once for each epoch."""
    make_tiny_model(tmp_path / "model")
    whole, before = _learnt(tmp_path / "model", AlgorithmConfig(), lr=0.0)

    for cut, epochs in ((2, 1), (4, 4), (8, 5)):
        parts, after = _learnt(tmp_path / "model", AlgorithmConfig(minibatches=cut, epochs=epochs), lr=0.0)
        assert sum(report.num_tokens for report in parts.reports) == epochs * whole.batch.num_tokens
        sums = {name: s for name, s in whole.metrics.items() if name in _ADDED}
        assert sums.keys() == _ADDED
        for name, wanted in sums.items():
            got = parts.metrics[name]
            assert got.value == pytest.approx(epochs * wanted.value, rel=1e-4, abs=1e-5), name
            assert got.weight == pytest.approx(epochs * wanted.weight), name
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_two_epochs_are_one_repeated(tmp_path: Path) -> None:
    """Where no column is computed by models: as many updates on the batch leave the same bits, beyond the third too."""
    make_tiny_model(tmp_path / "model")

    for epochs in (2, 4):
        once, weights = _learnt(tmp_path / "model", AlgorithmConfig(minibatches=2, epochs=epochs), lr=1e-2)
        again, others = _learnt(tmp_path / "model", AlgorithmConfig(minibatches=2), lr=1e-2, times=epochs)
        last = [attrs.evolve(report, seconds=0.0, metrics={}) for report in again.reports]
        assert [attrs.evolve(report, seconds=0.0, metrics={}) for report in once.reports[-2:]] == last
        assert weights.keys() == others.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in others.items())
