"""What pair checks are given: a trainer and replicas behind workers, the core's weight sync between them.

    async with bench.pair(replicas=2, optimizer=OptimizerSpec(lr=0.05)) as pair:
        generations = await pair.generate(prompts)
        await pair.step(pair.batch(prompts, generations))
        await pair.update()

Knows: how both sides are hosted, in this process or in processes of their own, and how a step is made.
Does not know: any backend, or what is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import evolve
from torch import Tensor

from areal_conformance.benches.base import Bench
from areal_conformance.benches.models import tiny_model
from areal_conformance.benches.pair_workers import InProcessWorker, Kept, KeptEngines
from areal_conformance.outcome import HarnessError, Inconclusive
from areal_conformance.target import Target
from areal_core.contract.batch import Batch
from areal_core.contract.inference import Generation, GenerationRequest, InferenceSpec, PauseMode, SamplingParams
from areal_core.contract.scheduler import Job, Worker
from areal_core.contract.train import LoraSpec, ObjectiveSpec, OptimizerSpec, Output, RankContext, TrainSpec
from areal_core.contract.trajectory import from_generation
from areal_core.contract.weights import WeightTransport
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.task_groups import gather_or_cancel
from areal_core.fleet.weight_sync import WeightSync, WeightUpdate
from areal_core.loop.train_group import TrainGroup
from areal_core.plugins.devices import count_visible
from areal_core.worker.rendezvous import init_method
from areal_torch.testing.batches import make_episode
from areal_worker.service import InferenceHost, Place, TrainHost

_Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], Coroutine[Any, Any, None]]

TIMEOUT_S = 60.0
PROMPTS: tuple[tuple[int, ...], ...] = ((5, 9, 12), (7,), (20, 3, 3, 41, 8), (11, 30))
"""Prompts of different lengths, one of them a single token."""


class Pair:
    """Both sides, started, and what travels between them."""

    def __init__(
        self,
        trainer: TrainGroup,
        pool: InferencePool,
        sync: WeightSync,
        transport: WeightTransport,
        workers: Mapping[str, Worker],
        model: Path,
    ) -> None:
        self.trainer, self.pool, self.sync, self.transport = trainer, pool, sync, transport
        self.workers = workers
        self.model = model
        self._count = 0

    @property
    def replicas(self) -> list[Worker]:
        """Return the workers of the inference side."""
        return [replica.worker for replica in self.pool.replicas]

    async def update(self) -> WeightUpdate:
        """Bring the trainer's weights to the replicas under the next version, and tell the trainer."""
        version = self.sync.version + 1
        update = await self.sync.update(version)
        await self.trainer.set_version(version)
        return update

    async def generate(
        self, prompts: Sequence[Sequence[int]] = PROMPTS, *, worker: Worker | None = None, **sampling: Any
    ) -> list[Generation]:
        """Generate for prompts at once. Any: the fields of SamplingParams; greedy, 8 tokens unless told."""
        given = {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling}
        calls = []
        for prompt in prompts:
            self._count += 1
            request = GenerationRequest(
                request_id=f"conformance/{self._count}",  # type: ignore[arg-type]
                input_ids=tuple(prompt),
                sampling=SamplingParams(**given),
            )
            if worker is None:
                calls.append(self.pool.generate(request))
            else:
                calls.append(worker.call("generate", request, timeout_s=TIMEOUT_S))
        return list(await asyncio.gather(*calls))

    def batch(self, generations: Sequence[Generation], prompts: Sequence[Sequence[int]] = PROMPTS) -> Batch:
        """Return what the core makes of generations: sampled ids, their log-probs and versions."""
        return Batch.pack(
            [
                make_episode(from_generation(prompt, generation, 1.0), group=f"g{number}", task=f"train/0/{number}")
                for number, (prompt, generation) in enumerate(zip(prompts, generations, strict=True))
            ]
        )

    async def step(self, batch: Batch) -> None:
        """Make the sampled tokens more likely: one optimizer step."""
        report = await self.trainer.train_step(batch, ObjectiveSpec(name="sft"))
        if not report.stepped:
            raise HarnessError(f"the optimizer did not step: {report}")

    async def logprobs(self, batch: Batch) -> Tensor:
        """Return the trainer's log-probs of the batch's trained tokens, in order."""
        column = await self.trainer.forward(batch, Output.LOGPROBS)
        trained: Tensor = column[batch.tokens["loss_mask"]]
        return trained

    async def saved(self, path: Path) -> Path:
        """Have the trainer write its weights as a model folder."""
        await self.trainer.save_weights(path)
        return path


class PairBench(Bench):
    """Pairs are made fresh for each check and closed with it."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._models: dict[str, Path] = {}
        self.train, self.infer = target.parts["train"], target.parts["infer"]
        self._kept = KeptEngines(self.pause)

    def model(self, **arguments: Any) -> Path:
        """Return a tiny model both sides take. Any: the arguments of `make_tiny_model`."""
        kinds = [kind for kind in self.train.adapter.models if kind in self.infer.adapter.models]
        if not kinds:
            raise HarnessError("the two adapters name no kind of tiny model that both sides take")
        wanted = {"kind": kinds[0], "hidden": 32, "tied": True, "max_position": 256, **arguments}
        wanted |= {**self.train.adapter.tiny, **self.infer.adapter.tiny}
        key = str(sorted(wanted.items()))
        if key not in self._models:
            self._models[key] = tiny_model(self.shared_folder / f"model-{len(self._models):02d}", **wanted)
        return self._models[key]

    @property
    def transports(self) -> tuple[str, ...]:
        """Return the core's transports the inference side claims."""
        return tuple(name for name in ("disk", "shm") if self.infer.claimed(f"transport.{name}")) or ("disk",)

    @property
    def staged(self) -> bool:
        """Return whether the replicas take new weights beside those they serve."""
        return self.infer.claimed("weights.staged")

    @property
    def pause(self) -> PauseMode | None:
        """Return how replicas are paused for the commit, as a run would."""
        if self.infer.claimed("weights.in_flight"):
            return None
        return PauseMode.KEEP if self.infer.claimed("pause.keep") else PauseMode.ABORT

    @contextlib.asynccontextmanager
    async def pair(
        self,
        *train_claims: str,
        model: Path | None = None,
        replica_model: Path | None = None,
        replicas: int = 1,
        transport: str | None = None,
        lr: float = 0.05,
        optimizer: OptimizerSpec | None = None,
        temperature: float = 1.0,
        train_dtype: str | None = None,
        infer_dtype: str | None = None,
        microbatch: int = 16384,
        infer_claims: tuple[str, ...] = (),
        lora: LoraSpec | None = None,
        processes: bool = False,
        wrap: Callable[[WeightTransport], WeightTransport] | None = None,
    ) -> AsyncIterator[Pair]:
        """Start a trainer and replicas on one model; `wrap` may stand between the transport and both sides.

        With `lora` the trainer's adapter travels alone.

        With `processes` every worker is a process of the local scheduler, unless the target is a mutant.
        """
        folder = model or self.model()
        name = transport or self.transports[0]
        registry = self.train.registry
        async with contextlib.AsyncExitStack() as stack:
            if wrap is not None:
                factory: Any = registry.load("transport", name)
                for side in {id(part.registry): part.registry for part in (self.train, self.infer)}.values():
                    stack.enter_context(side.overlay({("transport", name): lambda: wrap(factory())}))
            device = self.target.locator.device
            serving = InferenceSpec(
                model_path=str(replica_model or folder),
                dtype=infer_dtype or self.infer.adapter.dtypes[0],
                max_concurrent=16,
                device=device,
                options=self.infer.options(*infer_claims),
                lora=lora,
            )
            first = 0
            if processes and not self.target.locator.mutant:
                trainers, servers = await self._processes(stack, replicas)
            else:
                first, trainers, servers = await self._host_workers(stack, serving, replicas)
            carrier: Any = registry.build("transport", name)
            stack.callback(carrier.close)
            patience = self.target.adapter.patience * TIMEOUT_S
            group = TrainGroup("actor", trainers, timeout_s=patience)
            await group.start(
                TrainSpec(
                    role="actor",
                    model_path=str(folder),
                    dtype=train_dtype or self.train.adapter.dtypes[0],
                    optimizer=optimizer or OptimizerSpec(lr=lr, weight_decay=0.0),
                    temperature=temperature,
                    max_tokens_per_microbatch=microbatch,
                    options=self.train.options(*train_claims),
                    lora=lora,
                    send_adapter=lora is not None,
                ),
                [RankContext(rank=0, world_size=1, local_rank=0, device=device, init_method=init_method("127.0.0.1"))],
                timeout_s=patience,
            )
            pool = InferencePool(servers)
            starts = [
                worker.call("start", evolve(serving, replica=number), timeout_s=patience)
                for number, worker in enumerate(servers)
            ]
            await gather_or_cancel(starts)
            sync = WeightSync(
                trainers=trainers,
                pool=pool,
                transport=carrier,
                pause=self.pause,
                staged=self.staged,
                timeout_s=patience,
                version=first,
            )
            if first:
                await group.set_version(first)
            workers = {worker.id: worker for worker in (*trainers, *servers)}
            yield Pair(group, pool, sync, carrier, workers, folder)

    async def _host_workers(
        self, stack: contextlib.AsyncExitStack, spec: InferenceSpec, replicas: int
    ) -> tuple[int, list[Worker], list[Worker]]:
        """Host a trainer and replicas in this process; return the version the replicas serve first."""
        starting = asyncio.Lock()
        actor = TrainHost(Place(worker="actor/0", backend=self.train.name, registry=self.train.registry))
        stack.push_async_callback(actor.close)
        first, kept = await self._kept.take(spec, replicas)
        servers: list[Worker] = []
        for number in range(replicas):
            place = Place(worker=f"rollout/{number}", backend=self.infer.name, registry=self.infer.registry)
            again = kept[number] if kept else None
            host = InferenceHost(place, again.engine if again else None)
            worker = InProcessWorker(place.worker, host, starting, started=again.info if again else None)
            stack.push_async_exit(self._ending(worker, host, spec))
            servers.append(worker)
        return first, [InProcessWorker("actor/0", actor, starting)], servers

    def _ending(self, worker: InProcessWorker, host: InferenceHost, spec: InferenceSpec) -> _Exit:
        """Return what keeps an engine whose start is dear, if the check ended well, and closes any other."""

        async def end(kind: type[BaseException] | None, *_: object) -> None:
            if kind is not None or worker.started is None or not self.infer.adapter.slow_start:
                await host.close()
                return
            engine = host.let_go()
            if engine is not None:
                await self._kept.keep(Kept(engine=engine, spec=spec, info=worker.started))

        return end

    async def aclose(self) -> None:
        """Close the engines kept."""
        await self._kept.close()

    async def _processes(self, stack: contextlib.AsyncExitStack, replicas: int) -> tuple[list[Worker], list[Worker]]:
        own = self.target.locator
        here = count_visible(self.train.registry, os.environ).get(own.device)
        if here is not None and here <= replicas:
            raise Inconclusive(f"{1 + replicas} workers own a {own.device} device each, and {here} are here")
        scheduler: Any = self.train.registry.build("scheduler", "local", {"log_dir": str(self.folder / "logs")})
        stack.push_async_callback(scheduler.close)

        async def started(role: str, side: Target, count: int) -> list[Worker]:
            job = Job(role=role, engine_role=side.role, backend=side.name, num_workers=count)
            return list(await scheduler.submit(evolve(job, device=own.device, imports=own.imports)))

        return await started("actor", self.train, 1), await started("rollout", self.infer, replicas)
