"""A teacher asked by `scoring`: replicas of an inference engine tell the log-probs of tokens they are shown.

Knows: who is asked, how many answers at once, at which temperature.
Does not know: where replicas run, or what the log-probs are for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.scheduler import Worker
from areal_core.contract.train import Output
from areal_core.fleet.task_groups import gather_or_cancel


class ScoringTeacher:
    """Judges the tokens of a batch, sequence by sequence; stands where a frozen training role would."""

    def __init__(self, workers: Sequence[Worker], temperature: float, *, concurrency: int, timeout_s: float) -> None:
        self._workers, self._temperature = tuple(workers), temperature
        self._concurrency, self._timeout_s = concurrency, timeout_s

    async def forward(self, batch: Batch, output: Output) -> Tensor:
        """Return log p(token t | tokens before it) for the whole batch, float32 [T]; 0 for the first of a sequence.

        The longest sequences are asked about first, each replica taking the next when it has a place.

        Raises:
            WorkerError: a replica is lost, or does not answer in time.
        """
        assert output is Output.LOGPROBS, "scoring tells nothing else"
        ids, starts = batch.tokens["input_ids"].tolist(), batch.cu_seqlens.tolist()
        waiting = sorted(range(batch.num_sequences), key=lambda row: starts[row] - starts[row + 1])
        found = torch.zeros(batch.num_tokens, dtype=torch.float32)
        left = iter(waiting)

        async def asking(worker: Worker) -> None:
            for row in left:
                tokens = ids[starts[row] : starts[row + 1]]
                scores = await worker.call("score", tokens, self._temperature, timeout_s=self._timeout_s)
                found[starts[row] : starts[row + 1]] = torch.tensor(scores, dtype=torch.float32)

        await gather_or_cancel([asking(worker) for worker in self._workers for _ in range(self._concurrency)])
        return found
