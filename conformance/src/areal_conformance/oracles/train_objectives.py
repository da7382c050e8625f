"""Objectives that watch, count, draw, fail or die: what an engine does with an objective, on one rank or several.

Knows: the Objective protocol.
Does not know: engines. Losses are those of `areal_torch.testing.objectives` unless said otherwise.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import CANDIDATES, Output, Sum
from areal_torch.testing.objectives import PolicyGradient, ValueRegression


class Watcher(PolicyGradient):
    """A policy gradient that keeps what it was given, call by call."""

    def __init__(self, entropy: float = 0.01) -> None:
        super().__init__(entropy)
        self.losses: list[tuple[dict[str, Tensor], Batch, Tensor]] = []
        self.normalized: list[Batch] = []

    def normalizer(self, batch: Batch) -> Tensor:
        """Count trained tokens, and remember over what."""
        self.normalized.append(batch)
        return super().normalizer(batch)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the loss, and metrics that differ from micro-batch to micro-batch."""
        self.losses.append((dict(columns), batch, normalizer))
        loss, _ = super().loss(columns, batch, normalizer)
        tokens = float(batch.num_tokens)
        metrics = {"tokens": Sum(value=tokens, weight=1.0), "share": Sum(value=float(loss.detach()), weight=tokens)}
        if len(self.losses) == 1:
            metrics["only_first"] = Sum(value=3.0, weight=2.0)
        first = float(len(self.losses) == 1)
        metrics |= {f"first_{end}": Sum(value=far * first, weight=first) for end, far in (("min", 5.0), ("max", -5.0))}
        return loss, metrics


class Weighted:
    """-sum of advantage * logprob, divided by a normaliser that is no whole number."""

    outputs = frozenset({Output.LOGPROBS})
    columns = frozenset({"advantages", "loss_mask"})

    def __init__(self, share: float) -> None:
        """Let each trained token count `share`."""
        self._share = share

    def normalizer(self, batch: Batch) -> Tensor:
        """Return `share` per trained token."""
        mask: Tensor = batch.tokens["loss_mask"]
        return mask.sum().double() * self._share

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss; no metrics."""
        return -(batch.tokens["advantages"] * columns[Output.LOGPROBS]).sum() / normalizer, {}


class Quadratic(Weighted):
    """-sum over sequences of (reward + 1) * (its total log-prob) squared: needs whole sequences and their table."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss; no metrics."""
        column = columns[Output.LOGPROBS]
        totals = torch.zeros(batch.num_sequences, dtype=column.dtype, device=column.device)
        totals = totals.index_add(0, batch.sequence_ids.to(column.device), column)
        return 0.01 * ((batch.sequences["reward"] + 1.0) * totals.square()).sum() / normalizer, {}


class OfCandidates(Weighted):
    """-sum of advantage * (weighted log-probs of the candidates, a little of the token's own, and of the entropy)."""

    outputs = frozenset({Output.LOGPROBS, Output.CANDIDATE_LOGPROBS})
    columns = frozenset({"advantages", "loss_mask", CANDIDATES})

    def __init__(self, own: float = 0.3, entropy: float = 0.0) -> None:
        """Let the token that was taken count `own`; an entropy that counts nothing is not asked for."""
        super().__init__(1.0)
        self._own, self._entropy = own, entropy
        if entropy:
            self.outputs = self.outputs | {Output.ENTROPY}

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss; no metrics. Candidates count 1, 1/2, 1/3, ..."""
        judged = columns[Output.CANDIDATE_LOGPROBS]
        ranks = torch.arange(1, judged.shape[1] + 1, device=judged.device)
        gain = (judged / ranks).sum(1) + self._own * columns[Output.LOGPROBS]
        if self._entropy:
            gain = gain + self._entropy * columns[Output.ENTROPY]
        return -(batch.tokens["advantages"] * gain).sum() / normalizer, {}


class Filtering(Weighted):
    """As `Weighted`, of sequences with a reward only: where a micro-batch has none, its share is a constant."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss; no metrics."""
        kept = (batch.sequences["reward"] > 0.0)[batch.sequence_ids]
        if not bool(kept.any()):
            return torch.zeros((), device=batch.device), {}
        return super().loss(columns, batch.with_tokens(advantages=batch.tokens["advantages"] * kept), normalizer)


class Drawing(PolicyGradient):
    """A policy gradient whose advantages are multiplied by random numbers, drawn on the CPU as it goes."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the noisy loss."""
        noise = torch.rand(batch.num_tokens).to(batch.device)
        return super().loss(columns, batch.with_tokens(advantages=batch.tokens["advantages"] * noise), normalizer)


class Failing(PolicyGradient):
    """A policy gradient that raises in the micro-batch number `at`, counted from 0."""

    def __init__(self, at: int, error: Callable[[], Exception]) -> None:
        super().__init__()
        self._left = at
        self._error = error

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the loss, or raise."""
        if self._left == 0:
            raise self._error()
        self._left -= 1
        return super().loss(columns, batch, normalizer)


class Cliff(PolicyGradient):
    """A policy gradient whose loss is finite and whose gradient is not: the square root of nothing is added."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the same value with an infinite slope."""
        loss, metrics = super().loss(columns, batch, normalizer)
        logprobs = columns[Output.LOGPROBS]
        return loss + (logprobs - logprobs.detach()).abs().sqrt().sum(), metrics


LONG = 10
"""Tokens of a sequence that gives the metric `long`, which most shards do not have."""


class Gain:
    """-sum of advantage * logprob and a little entropy, divided by trained tokens plus half the sequences.

    The metrics are such that a mean in place of a sum, or one rank's in place of all, shows: `tokens` and
    `sequences` are counts, `long` comes from micro-batches with a long sequence only, `share` has weights that differ.
    """

    outputs = frozenset({Output.LOGPROBS, Output.ENTROPY})
    columns = frozenset({"advantages", "loss_mask"})

    def normalizer(self, batch: Batch) -> Tensor:
        """Count trained tokens, and sequences half."""
        trained: Tensor = batch.tokens["loss_mask"].sum().double()
        return trained + 0.5 * batch.num_sequences

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss, and metrics."""
        mask = batch.tokens["loss_mask"]
        gain = batch.tokens["advantages"] * columns[Output.LOGPROBS] + 0.05 * columns[Output.ENTROPY]
        metrics = {
            "tokens": Sum(value=float(batch.num_tokens), weight=1.0),
            "sequences": Sum(value=float(batch.num_sequences), weight=float(batch.num_sequences)),
            "share": Sum(value=float(batch.tokens["advantages"].double()[mask].sum()), weight=float(mask.sum())),
        }
        if int(batch.lengths.max()) >= LONG:
            metrics["long"] = Sum(value=float((batch.lengths >= LONG).sum()), weight=2.0)
        return -gain[mask].sum() / normalizer, metrics


TOLD = 160
"""Metrics that `Telling` adds: what a rank says of them is longer than a page of memory."""


class Telling(Gain):
    """As Gain, with as many metrics as an algorithm that tells much has, extremes among them."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss, and metrics."""
        loss, metrics = super().loss(columns, batch, normalizer)
        trained = float(batch.tokens["loss_mask"].sum())
        many = {f"told/of_number_{at:03d}": Sum(value=at * trained, weight=trained) for at in range(TOLD)}
        inside = batch.tokens["advantages"][batch.tokens["loss_mask"]]
        if len(inside):
            ends = {"_min": inside.min(), "_max": inside.max()}
            many |= {f"told/advantage{name}": Sum(value=float(end), weight=1.0) for name, end in ends.items()}
        return loss, {**metrics, **many}


LONG_NAME = "a column whose name is long " * 400
"""What names it is longer than two pages of memory."""


class Asking(Gain):
    """As Gain, with a column of a long name."""

    columns = Gain.columns | {LONG_NAME}


class DrawingGain(Gain):
    """As Gain, scaled by a random number drawn while the loss is computed; `drawn` keeps the numbers."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Return the share of the loss, and metrics."""
        number = torch.rand((), device=columns[Output.LOGPROBS].device)
        self.drawn.append(float(number))
        loss, metrics = super().loss(columns, batch, normalizer)
        return loss * (0.5 + number), metrics


class Dying(Gain):
    """As Gain, but its process is killed in the middle of the step, as the kernel's out-of-memory killer does it."""

    def loss(self, columns: Mapping[str, Tensor], batch: Batch, normalizer: Tensor) -> tuple[Tensor, Mapping[str, Sum]]:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(columns, batch, normalizer)


OBJECTIVES: Mapping[str, Any] = {
    "gain": Gain,
    "telling": Telling,
    "asking": Asking,
    "values": ValueRegression,
    "drawing": DrawingGain,
    "dying": Dying,
    "failing": partial(Failing, 0, lambda: ZeroDivisionError("by the objective")),
}
"""Name -> class, for programs, whose arguments are json. Any: classes of the protocol Objective."""
