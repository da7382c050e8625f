"""The running requests as arrays: one row each, so that a step costs the same few array operations.

Knows: where each row stands, when it ends, what it has produced and under which weights.
Does not know: the model, threads, or who waits for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, GenerationRequest, Timings, VersionSpan
from areal_reference.infer.sampling import RowSampling, uniforms
from areal_reference.infer.stopping import StopStrings

Ints = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)
FIRST_ROWS, FIRST_OUTPUTS = 8, 64


@define(kw_only=True, eq=False)
class Ticket:
    """One request on its way through the engine, prepared where it arrived.

    `end_ids` are the tokens that end it, `key` its random stream, `limit` the most tokens it may produce.
    `stop_strings` has already seen the prior tokens. `arrived_s`, `admitted_s`, `first_s` are clock readings.
    """

    request: GenerationRequest
    end_ids: tuple[int, ...]
    key: int
    limit: int
    stop_strings: StopStrings | None
    arrived_s: float
    admitted_s: float = 0.0
    first_s: float = 0.0
    replay: int = 0
    """Prior tokens to feed one by one instead of as prompt (deterministic mode)."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Return what is cached before the first step: all but the token the first step starts from."""
        return self.request.input_ids[: len(self.request.input_ids) - self.replay - 1]


def _grow(array: NDArray[Number], shape: tuple[int, ...], fill: int) -> NDArray[Number]:
    bigger: NDArray[Number] = np.full(shape, fill, dtype=array.dtype)
    bigger[tuple(slice(size) for size in array.shape)] = array
    return bigger


def _ints() -> Ints:
    return np.zeros(FIRST_ROWS, dtype=np.int64)


@define(eq=False)
class RowTable:
    """Rows 0..count-1 are running; every array's first axis is the row.

    `token` at `position` is the last known token, not yet cached; `generated` counts outputs of this call.
    """

    count: int = 0
    tickets: list[Ticket] = field(factory=list)
    token: Ints = field(factory=_ints)
    position: Ints = field(factory=_ints)
    generated: Ints = field(factory=_ints)
    limit: Ints = field(factory=_ints)
    prior: Ints = field(factory=_ints)
    replay: Ints = field(factory=_ints)
    min_new: Ints = field(factory=_ints)
    top_k: Ints = field(factory=_ints)
    top_p: NDArray[np.float64] = field(factory=lambda: np.ones(FIRST_ROWS))
    temperature: NDArray[np.float32] = field(factory=lambda: np.ones(FIRST_ROWS, dtype=np.float32))
    greedy: NDArray[np.bool_] = field(factory=lambda: np.zeros(FIRST_ROWS, dtype=np.bool_))
    stopped: NDArray[np.bool_] = field(factory=lambda: np.zeros(FIRST_ROWS, dtype=np.bool_))
    key: NDArray[np.uint64] = field(factory=lambda: np.zeros(FIRST_ROWS, dtype=np.uint64))
    end_ids: Ints = field(factory=lambda: np.full((FIRST_ROWS, 2), -1, dtype=np.int64))
    out_tokens: Ints = field(factory=lambda: np.zeros((FIRST_ROWS, FIRST_OUTPUTS), dtype=np.int64))
    out_logprobs: NDArray[np.float32] = field(factory=lambda: np.zeros((FIRST_ROWS, FIRST_OUTPUTS), dtype=np.float32))
    out_versions: NDArray[np.int32] = field(factory=lambda: np.zeros((FIRST_ROWS, FIRST_OUTPUTS), dtype=np.int32))

    _OUTPUTS: ClassVar[tuple[str, ...]] = ("out_tokens", "out_logprobs", "out_versions")
    _VECTORS: ClassVar[tuple[str, ...]] = (
        *("token", "position", "generated", "limit", "prior", "replay", "min_new"),
        *("top_k", "top_p", "temperature", "greedy", "stopped", "key"),
    )

    def add(self, ticket: Ticket) -> int:
        """Give a ticket the next row and return its number."""
        row, sampling, ids = self.count, ticket.request.sampling, ticket.request.input_ids
        self._reserve(row + 1, len(ticket.end_ids))
        start = len(ids) - ticket.replay - 1
        self.token[row], self.position[row], self.replay[row] = ids[start], start, ticket.replay
        self.generated[row], self.limit[row], self.prior[row] = 0, ticket.limit, ticket.request.num_prior
        self.min_new[row], self.top_k[row], self.top_p[row] = sampling.min_new_tokens, sampling.top_k, sampling.top_p
        self.greedy[row] = sampling.temperature == 0
        self.temperature[row] = sampling.temperature or 1.0
        self.key[row] = ticket.key
        self.end_ids[row] = -1
        self.end_ids[row, : len(ticket.end_ids)] = ticket.end_ids
        self.tickets.append(ticket)
        self.count += 1
        return row

    def _reserve(self, rows: int, ends: int) -> None:
        size = max(len(self.token), 2 * rows if rows > len(self.token) else 0)
        width = max(self.end_ids.shape[1], ends)
        if (size, width) != self.end_ids.shape:
            self.end_ids = _grow(self.end_ids, (size, width), -1)
        if size > len(self.token):
            for name in self._VECTORS:
                setattr(self, name, _grow(getattr(self, name), (size,), 0))
            self._reserve_outputs(self.out_tokens.shape[1])

    def _reserve_outputs(self, length: int) -> None:
        for name in self._OUTPUTS:
            setattr(self, name, _grow(getattr(self, name), (len(self.token), length), 0))

    def remove(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Free rows and close the gaps with rows from the end.

        Returns:
            (source, target) of every row that moved; its cache must move likewise.
        """
        gone = set(rows)
        kept = self.count - len(gone)
        holes = sorted(row for row in gone if row < kept)
        movers = [row for row in range(kept, self.count) if row not in gone]
        if holes:
            for name in (*self._VECTORS, *self._OUTPUTS, "end_ids"):
                array = getattr(self, name)
                array[holes] = array[movers]
            for source, target in zip(movers, holes, strict=True):
                self.tickets[target] = self.tickets[source]
        del self.tickets[kept:]
        self.count = kept
        return list(zip(movers, holes, strict=True))

    def sampling(self, rows: Ints, *, fixed_shape: bool = False) -> RowSampling:
        """Return how the next token of `rows` is drawn."""
        index = self.prior[rows] - self.replay[rows] + self.generated[rows]
        forbidden = np.zeros((0, 2), dtype=np.int64)
        early = index < self.min_new[rows]
        if early.any():
            forbidden = np.argwhere((self.end_ids[rows] >= 0) & early[:, None])
        return RowSampling(
            greedy=self.greedy[rows],
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            uniform=uniforms(self.key[rows], index),
            forbidden_rows=forbidden[:, 0],
            forbidden_ids=self.end_ids[rows[forbidden[:, 0]], forbidden[:, 1]],
            fixed_shape=fixed_shape,
        )

    def record(self, tokens: Ints, logprobs: NDArray[np.float32], version: int, now_s: float) -> list[int]:
        """Take the drawn tokens of all rows, computed by the weights of `version`; return the rows that ended."""
        replaying = self.replay[: self.count] > 0
        rows = np.flatnonzero(~replaying)
        for row in np.flatnonzero(replaying).tolist():
            self._replay(row)
        tokens, column = tokens[rows], self.generated[rows]
        if len(rows) and column.max() >= self.out_tokens.shape[1]:
            self._reserve_outputs(2 * self.out_tokens.shape[1])
        self.out_tokens[rows, column] = tokens
        self.out_logprobs[rows, column] = logprobs[rows]
        self.out_versions[rows, column] = version
        for row in rows[column == 0].tolist():
            self.tickets[row].first_s = now_s
        self.generated[rows] += 1
        self.position[rows] += 1
        self.token[rows] = tokens
        self.stopped[rows] = (self.end_ids[rows] == tokens[:, None]).any(1)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            if self.tickets[row].stop_strings is not None and self._completes(row, token):
                self.stopped[row] = True
        ended = self.stopped[rows] | (self.generated[rows] >= self.limit[rows])
        done: list[int] = rows[ended].tolist()
        return done

    def _replay(self, row: int) -> None:
        """Step over a token that is already known: its cache entry was the point of the step."""
        self.position[row] += 1
        self.token[row] = self.tickets[row].request.input_ids[self.position[row]]
        self.replay[row] -= 1

    def _completes(self, row: int, token: int) -> bool:
        watch = self.tickets[row].stop_strings
        long_enough = bool(self.prior[row] + self.generated[row] >= self.min_new[row])
        return watch is not None and watch.push(token, may_stop=long_enough)

    def tokens_cached(self, row: int) -> tuple[int, ...]:
        """Return the tokens whose cache entries the row relies on: everything before its last one."""
        known = (*self.tickets[row].request.input_ids, *self.out_tokens[row, : self.generated[row]].tolist())
        return known[: int(self.position[row])]

    def result(self, row: int, now_s: float, reason: StopReason | None = None) -> Generation:
        """Return what the row produced so far; the reason is worked out unless given."""
        ticket, count = self.tickets[row], int(self.generated[row])
        if reason is None:
            reason = StopReason.STOP if self.stopped[row] else StopReason.LENGTH
        return Generation(
            output_ids=tuple(self.out_tokens[row, :count].tolist()),
            logprobs=tuple(self.out_logprobs[row, :count].tolist()),
            version_spans=spans(self.out_versions[row, :count]),
            stop_reason=reason,
            timings=Timings(
                queued_s=ticket.admitted_s - ticket.arrived_s,
                first_token_s=ticket.first_s - ticket.arrived_s if count else 0.0,
                total_s=now_s - ticket.arrived_s,
            ),
        )


def spans(versions: NDArray[np.int32]) -> tuple[VersionSpan, ...]:
    """Return runs of equal versions as spans that cover every token."""
    if not len(versions):
        return ()
    cuts = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
    return tuple(
        VersionSpan(start=start, stop=stop, version=int(versions[start]))
        for start, stop in zip(cuts, cuts[1:], strict=False)
    )
