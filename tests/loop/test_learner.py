"""One batch into one version, with every role there can be, on real engines in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from areal_core.algorithms.config import (
    AdvantageConfig,
    AlgorithmConfig,
    BehaviourConfig,
    BehaviourWeight,
    KLConfig,
    Proximal,
)
from areal_core.algorithms.plan import critic_spec, objective_spec
from areal_core.contract.train import Head, OptimizerSpec, RankContext, TrainSpec
from areal_core.loop.learner import Learner
from areal_core.loop.train_group import TrainGroup
from areal_core.worker.service import Place, TrainHost
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model

pytest.importorskip("areal_reference")

EVERYTHING = AlgorithmConfig(
    minibatches=3,
    proximal=Proximal.RECOMPUTE,
    behaviour=BehaviourConfig(mode=BehaviourWeight.CLAMP),
    advantages=AdvantageConfig(kl=KLConfig(coefficient=0.1), gamma=0.99, lam=0.95),
)


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
            max_new_tokens=16,
            reference=reference,
            critic=critic,
            critic_objective=critic_spec(EVERYTHING),
        )
        update = await learner.update(make_batch([(2, 3), (1, 5), (4, 9), (3, 1), (2, 12), (6, 2)]), 4)

        steps = ["forward", *3 * ["train_step"], "set_version"]
        workers = [group.workers[0] for group in (actor, critic, reference)]
        assert [[name for name, _ in worker.calls[1:]] for worker in workers] == [steps, steps, ["forward"]]
        assert [worker.versions() for worker in workers] == [[5], [5], []]
        assert update.stepped == 3
        assert {"reference_kl", "behaviour_weight", "critic/loss"} <= update.metrics.keys()
        for worker in workers:
            await worker.call("close", timeout_s=60.0)

    asyncio.run(test())
