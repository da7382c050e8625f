"""Relations instead of values: ways to put the same lesson that must not change what is learned.

Knows: batches, and how the same one can be presented otherwise; what may be done to an engine between two steps.
Does not know: what is right; one way is compared with another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.outcome import expect
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import Objective, Output, Sum, TrainEngine

Presented = Callable[[Batch, int], Batch]
"""Returns the same lesson in another form; the number draws how."""


def permuted(batch: Batch, number: int) -> Batch:
    """Return its sequences in another order."""
    rows = list(range(batch.num_sequences))
    random.Random(number).shuffle(rows)
    return batch.select(rows)


def repeated(batch: Batch, _number: int) -> Batch:
    """Return every sequence twice: the sum doubles, and so does what it is divided by."""
    return batch.select([*range(batch.num_sequences), *reversed(range(batch.num_sequences))])


def beside_strangers(batch: Batch, number: int) -> Batch:
    """Return it with sequences of which nothing is trained among its own, one of them first."""
    rows = [*range(batch.num_sequences), 0, batch.num_sequences - 1]
    whole = batch.select(rows)
    starts, mask = whole.cu_seqlens.tolist(), whole.tokens["loss_mask"].clone()
    mask[starts[batch.num_sequences] :] = False
    order = list(range(len(rows)))
    random.Random(number).shuffle(order)
    order.remove(batch.num_sequences)
    return whole.with_tokens(loss_mask=mask).select([batch.num_sequences, *order])


def with_tails(batch: Batch, number: int) -> Batch:
    """Return it with one to five tokens behind each sequence that are not trained on; nothing before sees them."""
    drawn = random.Random(number)
    tails = [1 + drawn.randrange(5) for _ in range(batch.num_sequences)]
    starts = batch.cu_seqlens.tolist()
    spans = list(zip(starts[:-1], starts[1:], tails, strict=True))
    # Tokens of the batch itself, so that every column has numbers of its own kind there.
    index = torch.cat([torch.tensor([*range(a, b), *([starts[number % 2] + 1] * more)]) for a, b, more in spans])
    tokens = {str(name): column[index] for name, column in batch.tokens.items()}
    own = torch.cat([torch.tensor([True] * (b - a) + [False] * more) for a, b, more in spans])
    sequences = {str(name): column for name, column in batch.sequences.items()}
    lengths = batch.lengths + torch.tensor(tails, dtype=batch.lengths.dtype)
    return Batch.of({**tokens, "loss_mask": tokens["loss_mask"] & own}, sequences, lengths)


def copied(batch: Batch) -> Batch:
    """Return the batch in memory of its own."""
    return Batch.from_flat({name: column.clone() for name, column in batch.flat().items()})


class Raising:
    """An objective that raises in the second micro-batch; it draws nothing."""

    def __init__(self, inner: Objective) -> None:
        self._inner, self._calls = inner, 0
        self.outputs, self.columns = inner.outputs, inner.columns

    def normalizer(self, batch: Batch) -> Tensor:
        """Return that of the objective it is made of."""
        return self._inner.normalizer(batch)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the loss once, then raise.

        Raises:
            ZeroDivisionError: always, but for the first micro-batch.
        """
        self._calls += 1
        if self._calls > 1:
            raise ZeroDivisionError("the suite's objective raises")
        return self._inner.loss(columns, batch, normalizer)


class Noisy:
    """An objective whose loss is scaled by a number drawn on the CPU: what is random shows in every step."""

    def __init__(self, inner: Objective) -> None:
        self._inner = inner
        self.outputs, self.columns = inner.outputs, inner.columns

    def normalizer(self, batch: Batch) -> Tensor:
        """Return that of the objective it is made of."""
        return self._inner.normalizer(batch)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the loss, half to one and a half times as large."""
        loss, metrics = self._inner.loss(columns, batch, normalizer)
        return loss * (0.5 + torch.rand(()).to(loss.device)), metrics


class Acts:
    """What may be done to an engine between two steps: each act once, in an order that is drawn, then all anew."""

    def __init__(self, bench: TrainBench, output: Output, objective: Callable[[], Objective], seed: int) -> None:
        self._bench, self._outputs, self._objective = bench, frozenset({output}), objective
        self._drawn, self._left, self._count = random.Random(seed), list[str](), 0

    def do(self, engine: TrainEngine, times: int) -> list[str]:
        """Do the next acts; return their names."""
        done = []
        for _ in range(times):
            if not self._left:
                self._left = [name.removeprefix("act_") for name in dir(self) if name.startswith("act_")]
                self._drawn.shuffle(self._left)
            done.append(self._left.pop())
            self._count += 1
            getattr(self, f"act_{done[-1]}")(engine)
        return done

    def act_scored(self, engine: TrainEngine) -> None:
        """Score a batch of other sequences."""
        engine.forward(self._bench.batch([(3, 8), (1, 1), (6, 2)], seed=50 + self._count), self._outputs)

    def act_scored_nothing(self, engine: TrainEngine) -> None:
        """Score an empty shard."""
        engine.forward(self._bench.batch().select([]), self._outputs)

    def act_sent(self, engine: TrainEngine) -> None:
        """Send the weights."""
        self._bench.sent(engine, version=100 + self._count)

    def act_saved(self, engine: TrainEngine) -> None:
        """Save the weights as a folder."""
        engine.save_weights(self._bench.folder / f"weights-{self._count}")

    def act_saved_state(self, engine: TrainEngine) -> None:
        """Save a state nobody loads."""
        engine.save_state(self._bench.folder / f"unused-{self._count}")

    def act_told_a_version(self, engine: TrainEngine) -> None:
        """Set the version, as after an update."""
        engine.version = self._count

    def act_refused(self, engine: TrainEngine) -> None:
        """Be asked for a step that lacks a column."""
        batch = self._bench.batch(seed=60)
        tokens = {str(n): column for n, column in batch.tokens.items() if n not in ("advantages", "returns")}
        lacking = Batch.of(tokens, {str(n): column for n, column in batch.sequences.items()}, batch.lengths)
        self._raises(engine, lacking, self._objective(), BatchError)

    def act_failed(self, engine: TrainEngine) -> None:
        """Be given an objective that raises after a first micro-batch."""
        self._raises(engine, self._bench.batch(seed=61), Raising(self._objective()), ZeroDivisionError)

    def _raises(self, engine: TrainEngine, batch: Batch, objective: Any, kind: type[Exception]) -> None:
        try:
            engine.train_step(batch, objective)
        except kind:
            return
        expect(False, f"a step that has to end with {kind.__name__} was made")
