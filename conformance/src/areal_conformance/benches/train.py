"""What a check of a train engine is given: models on disk, batches, started engines, and two roads to their weights.

    with bench.engine(optimizer=OptimizerSpec(lr=1e-2), temperature=0.7) as engine:
        report = engine.train_step(bench.batch(["0011", (2, 5)]), PolicyGradient())
        sent = bench.sent(engine)

Knows: how one rank of the target is built, started and let go.
Does not know: what is checked; several ranks live in `areal_conformance.ranks`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from areal_conformance.adapter import Tolerance
from areal_conformance.benches.base import Bench
from areal_conformance.benches.models import tiny_model
from areal_conformance.rank_pool.pool import RankPool
from areal_conformance.target import Target
from areal_core.contract.batch import Batch
from areal_core.contract.train import EngineInfo, OptimizerSpec, RankContext, TrainEngine, TrainSpec
from areal_core.weights.tensors import fingerprint
from areal_core.worker.rendezvous import init_method
from areal_torch.testing.batches import make_episode, make_trajectory
from areal_torch.testing.memory_weights import MemorySink

Shape = tuple[int, int] | str
"""One sequence: (prompt tokens, generated tokens), or its loss mask spelled out, "00110"."""

SHAPES: tuple[Shape, ...] = ((2, 3), (1, 5), (4, 9), (3, 1), "0110100", (1, 1), (5, 7))
"""Lengths 2 to 13, a mask with gaps, one trained token, one after the first."""

REWARDS = (1.0, -0.5, 0.25, 0.0)
"""Of the sequences of a batch, in turn."""

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

_HALF = 3e-2
"""How far apart numbers may be where the backend has no float32."""


class TrainBench(Bench):
    """One rank in this process. Only one train engine may be alive at a time, for its process group is the process's.

    `info` is what the engine started last reported.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.rank, self.world_size = 0, 1
        self.info: EngineInfo | None = None
        self._alive: list[TrainEngine] = []
        self._models: dict[tuple[tuple[str, Any], ...], Path] = {}
        self._pool: RankPool | None = None
        self._seen: dict[str, list[Any]] = {}  # Any: plain json

    def model(self, **arguments: Any) -> Path:
        """Return a tiny model folder, made once per session. Any: the arguments of `make_tiny_model`."""
        wanted = {"kind": self.target.adapter.models[0], **arguments}
        key = tuple(sorted(wanted.items()))
        if key not in self._models:
            self._models[key] = tiny_model(self.shared_folder / f"model-{len(self._models):02d}", **wanted)
        return self._models[key]

    @property
    def dtype(self) -> str:
        """Return the dtype checks run in unless they say otherwise."""
        return self.target.adapter.dtypes[0]

    def spec(self, *claims: str, model: Path | None = None, **fields: Any) -> TrainSpec:
        """Return a spec with an optimizer, for the default model. Any: the fields of TrainSpec."""
        given: dict[str, Any] = {
            "role": "actor",
            "model_path": str(model or self.model()),
            "dtype": self.dtype,
            "optimizer": OptimizerSpec(lr=1e-2, weight_decay=0.1),
            "options": self.target.options(*claims),
        }
        return TrainSpec(**{**given, **fields})

    def rank_context(self, timeout_s: float = 60.0) -> RankContext:
        """Return where this rank runs, and where it meets the others."""
        return RankContext(
            rank=self.rank,
            world_size=self.world_size,
            local_rank=self.rank,
            device=self.target.locator.device,
            init_method=self.rendezvous(),
            timeout_s=timeout_s * self.target.adapter.patience,
        )

    def rendezvous(self) -> str:
        """Return an address nobody has used."""
        return init_method("127.0.0.1")

    @contextlib.contextmanager
    def engine(self, *claims: str, model: Path | None = None, **fields: Any) -> Iterator[TrainEngine]:
        """Start an engine with the abilities `claims` switched on; it is closed after the block."""
        engine: TrainEngine = self.build(*claims)
        self._alive.append(engine)
        try:
            self.info = engine.start(self.spec(*claims, model=model, **fields), self.rank_context())
            yield engine
        finally:
            self._alive.remove(engine)
            engine.close()

    def fresh(self, *claims: str) -> TrainEngine:
        """Return an engine that was not started; it is closed after the check, if the check did not."""
        engine: TrainEngine = self.build(*claims)
        self._alive.append(engine)
        return engine

    def batch(self, shapes: Sequence[Shape] = SHAPES, *, seed: int = 0, **columns: Tensor | float) -> Batch:
        """Return packed sequences, with `advantages` and `returns` drawn from the seed unless given.

        A number as a column fills it.
        """
        trajectories = []
        for number, shape in enumerate(shapes):
            mask = [mark == "1" for mark in shape] if isinstance(shape, str) else None
            prompt, generated = (1, len(shape) - 1) if isinstance(shape, str) else shape
            reward = REWARDS[number % len(REWARDS)]
            trajectories.append(make_trajectory(prompt, generated, mask=mask, reward=reward, seed=997 * seed + number))
        batch = Batch.pack([make_episode(one, group=f"g{number}") for number, one in enumerate(trajectories)])
        generator = torch.Generator().manual_seed(4242 + seed)
        noise = {name: torch.randn(batch.num_tokens, generator=generator) for name in ("advantages", "returns")}
        given = {
            name: column if isinstance(column, torch.Tensor) else torch.full((batch.num_tokens,), float(column))
            for name, column in columns.items()
        }
        return batch.with_tokens(**{**noise, **given})

    def sent(self, engine: TrainEngine, version: int = 1) -> dict[str, Tensor]:
        """Return what the engine sends, by name."""
        sink = MemorySink()
        engine.send_weights(sink if self.rank == 0 else None, version)
        return sink.tensors

    def witnessed(self, engine: TrainEngine) -> dict[str, Tensor]:
        """Return the weights in use by another road: the adapter's witness, else what `save_weights` writes."""
        witness = self.target.adapter.witness(engine)
        if witness is not None:
            return {name: tensor.detach().cpu().clone() for name, tensor in witness.tensors().items()}
        folder = self.folder / f"witness-{len(list(self.folder.glob('witness-*'))):03d}"
        engine.save_weights(folder)
        return read_folder(folder)

    def tolerance(self, *, atol: float = 0.0, rtol: float = 0.0) -> Tolerance:
        """As for every bench; without float32 no tolerance of numbers that differ at all is under that of the dtype."""
        if (atol or rtol) and "float32" not in self.target.adapter.dtypes:
            atol, rtol = max(atol, _HALF), max(rtol, _HALF)
        return super().tolerance(atol=atol, rtol=rtol)

    def on_ranks(
        self,
        program: str,
        world_size: int,
        *,
        apart_s: float = 15.0,
        may_die: tuple[int, ...] = (),
        unlike: bool = False,
        **arguments: Any,
    ) -> list[Any]:
        """Run `module:function` on every rank of a role, in processes that are kept; return every rank's result.

        Any: arguments and results are plain json. `apart_s` is how much later than the first the last rank may come
        to the same point; `may_die` are ranks the program kills, whose result is None; `unlike` ranks have sets in
        another order each. Violation and a new set of processes if a rank misses its deadline.
        """
        if self._pool is None:
            self._pool = RankPool(self.target, self.shared_folder)
        deadline_s = (self._check.deadline_s if self._check else 60.0) * self.target.adapter.patience
        results: list[Any] = self._pool.run(
            program,
            world_size,
            arguments,
            self.folder,
            deadline_s,
            apart_s=apart_s,
            may_die=may_die,
            unlike=unlike,
        )
        return results

    def looked(self, program: str, world_size: int, **arguments: Any) -> list[Any]:
        """As `on_ranks`, but made once in a session: for programs that only look, of which several checks judge a part.

        Any: arguments and results are plain json. What raises is made again.
        """
        key = json.dumps([program, world_size, arguments], sort_keys=True)
        if key not in self._seen:
            self._seen[key] = self.on_ranks(program, world_size, **arguments)
        return self._seen[key]

    async def end(self, *, passed: bool) -> None:
        """Close engines the check left open, and free the process for the next one."""
        alive, self._alive = self._alive, []
        try:
            for engine in alive:
                engine.close()
        finally:
            leave_process_group()

    def close(self) -> None:
        """End the ranks and remove the folders."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        super().close()


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of every safetensors file of a model folder, a tied head once."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    head, embedding = tensors.get(_HEAD), tensors.get(_EMBEDDING)
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    if tied and head is not None and embedding is not None and head.equal(embedding):
        del tensors[_HEAD]
    return tensors


def leave_process_group() -> None:
    """Destroy a process group an engine left behind, so that the next one can start; a check judges what it means."""
    distributed: Any = sys.modules.get("torch.distributed")  # Any: a module, looked up so as not to import it
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[str]:
    """Return the names that are on one side only, or differ in dtype, shape or any bit."""
    return [
        name
        for name in sorted({*left, *right})
        if name not in left or name not in right or fingerprint(left[name]) != fingerprint(right[name])
    ]
