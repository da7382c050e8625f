"""The running requests as arrays: one row each, so that a step costs the same few array operations.

Knows: where each row stands, when it ends, what it has produced and under which weights.
Does not know: the model, threads, or who waits for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from areal_core.contract.abilities import asked_of_sampling
from areal_core.contract.data import StopReason
from areal_core.contract.inference import Generation, GenerationRequest, Timings, VersionSpan
from areal_reference.infer.adapters import NamedAdapter
from areal_reference.infer.sampling import RowSampling, uniforms
from areal_serving.stopping import StopStrings

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
    adapter: NamedAdapter | None = None
    """What it is computed with in place of the policy."""

    @property
    def penalised(self) -> bool:
        """Tell whether tokens that came before are penalised."""
        asked = asked_of_sampling(self.request.sampling)
        return "sampling.penalties" in asked or "sampling.repetition_penalty" in asked

    @property
    def final_length(self) -> int:
        """Return how long the sequence can get."""
        return len(self.request.input_ids) + self.limit

    @property
    def prefix(self) -> tuple[int, ...]:
        """Return what is cached before the first step: all but the token the first step starts from."""
        return self.request.input_ids[: len(self.request.input_ids) - self.replay - 1]

    @property
    def shared(self) -> tuple[int, ...]:
        """Return the same for requests whose prefixes have the same cache."""
        return self.prefix if self.adapter is None else (-id(self.adapter), *self.prefix)


STATE = np.dtype(
    [
        *((name, np.int64) for name in ("token", "position", "generated", "limit", "final", "prior", "replay")),
        *((name, np.int64) for name in ("min_new", "top_k")),
        *(("key", np.uint64), ("top_p", np.float64), ("min_p", np.float64), ("temperature", np.float32)),
        *((name, np.bool_) for name in ("greedy", "stopped", "watched", "penalised")),
    ],
    align=True,  # torch takes no array whose strides are not multiples of its elements
)
"""One row's numbers. `token` at `position` is the last known token, not yet cached; `generated` counts the outputs
of this call, `limit` bounds them, `final` is the longest the sequence can get; `watched` has stop strings."""
SEEN = np.dtype([("place", np.int64), ("token", np.int64), ("scale", np.float32), ("minus", np.float32)], align=True)
OUTPUT = np.dtype([("token", np.int64), ("logprob", np.float32), ("version", np.int32)], align=True)


def _grow(array: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
    bigger: NDArray[Number] = np.zeros(shape, dtype=array.dtype)
    bigger[tuple(slice(size) for size in array.shape)] = array
    return bigger


@define(eq=False)
class RowTable:
    """Rows 0..count-1 are running; the first axis of every array is the row.

    `end_ids` [rows, ends] is padded with -1; `outputs` [rows, length] holds what was generated.
    """

    count: int = 0
    tickets: list[Ticket] = field(factory=list)
    state: NDArray[np.void] = field(factory=lambda: np.zeros(FIRST_ROWS, dtype=STATE))
    end_ids: Ints = field(factory=lambda: np.full((FIRST_ROWS, 2), -1, dtype=np.int64))
    outputs: NDArray[np.void] = field(factory=lambda: np.zeros((FIRST_ROWS, FIRST_OUTPUTS), dtype=OUTPUT))

    @property
    def tokens(self) -> Ints:
        """Return the last token of every running row."""
        return self.state["token"][: self.count].copy()

    @property
    def positions(self) -> Ints:
        """Return where the last token of every running row stands."""
        return self.state["position"][: self.count].copy()

    def add(self, ticket: Ticket) -> int:
        """Give a ticket the next row and return its number."""
        row, sampling, ids = self.count, ticket.request.sampling, ticket.request.input_ids
        self._reserve(row + 1, len(ticket.end_ids))
        start = len(ids) - ticket.replay - 1
        self.state[row] = (
            *(ids[start], start, 0, ticket.limit, ticket.final_length, ticket.request.num_prior, ticket.replay),
            *(sampling.min_new_tokens, sampling.top_k),
            *(ticket.key, sampling.top_p, sampling.min_p, sampling.temperature or 1.0),
            *(sampling.temperature == 0, False, ticket.stop_strings is not None, ticket.penalised),
        )
        self.end_ids[row] = -1
        self.end_ids[row, : len(ticket.end_ids)] = ticket.end_ids
        self.tickets.append(ticket)
        self.count += 1
        return row

    def _reserve(self, rows: int, ends: int) -> None:
        size = len(self.state) if rows <= len(self.state) else 2 * rows
        if size > len(self.state):
            self.state = _grow(self.state, (size,))
            self.outputs = _grow(self.outputs, (size, self.outputs.shape[1]))
        if size > self.end_ids.shape[0] or ends > self.end_ids.shape[1]:
            old = self.end_ids
            self.end_ids = np.full((size, max(ends, old.shape[1])), -1, dtype=np.int64)
            self.end_ids[: old.shape[0], : old.shape[1]] = old

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
            for array in (self.state, self.end_ids, self.outputs):
                array[holes] = array[movers]
            for source, target in zip(movers, holes, strict=True):
                self.tickets[target] = self.tickets[source]
        del self.tickets[kept:]
        self.count = kept
        return list(zip(movers, holes, strict=True))

    def sampling(self, rows: Ints, *, fixed_shape: bool = False) -> RowSampling:
        """Return how the next token of `rows` is drawn."""
        state = self.state[rows]
        index = state["prior"] + state["generated"]
        forbidden = np.zeros((0, 2), dtype=np.int64)
        early = index < state["min_new"]
        if early.any():
            forbidden = np.argwhere((self.end_ids[rows] >= 0) & early[:, None])
        seen = self._seen(rows)
        return RowSampling(
            greedy=state["greedy"],
            temperature=state["temperature"],
            top_k=state["top_k"],
            top_p=state["top_p"],
            min_p=state["min_p"],
            uniform=uniforms(state["key"], index),
            forbidden_rows=forbidden[:, 0],
            forbidden_ids=self.end_ids[rows[forbidden[:, 0]], forbidden[:, 1]],
            seen_rows=seen["place"],
            seen_ids=seen["token"],
            seen_scale=seen["scale"],
            seen_minus=seen["minus"],
            fixed_shape=fixed_shape,
        )

    def _seen(self, rows: Ints) -> NDArray[np.void]:
        """Return (place in `rows`, token, penalties) of every token that came before in a row with penalties."""
        parts = [np.zeros(0, dtype=SEEN)]
        for place in np.flatnonzero(self.state["penalised"][rows]).tolist():
            row, request = int(rows[place]), self.tickets[rows[place]].request
            cut = len(request.input_ids) - request.num_prior
            drawn = self.outputs["token"][row, : self.state["generated"][row]]
            output = np.concatenate([np.asarray(request.input_ids[cut:], dtype=np.int64), drawn])
            ids = np.union1d(np.asarray(request.input_ids[:cut], dtype=np.int64), output)
            counts = (output == ids[:, None]).sum(1)
            part = np.zeros(len(ids), dtype=SEEN)
            part["place"], part["token"], part["scale"] = place, ids, request.sampling.repetition_penalty
            part["minus"] = request.sampling.frequency_penalty * counts
            part["minus"] += request.sampling.presence_penalty * (counts > 0)
            parts.append(part)
        return np.concatenate(parts)

    def record(self, tokens: Ints, logprobs: NDArray[np.float32], version: int, now_s: float) -> list[int]:
        """Take the drawn tokens of all rows, computed by the weights of `version`; return the rows that ended.

        Rows with an adapter are stamped with the adapter's version.
        """
        replaying = self.state["replay"][: self.count] > 0
        rows, state = np.arange(self.count), self.state[: self.count]
        if some_replay := bool(replaying.any()):
            for row in np.flatnonzero(replaying).tolist():
                self._replay(row)
            rows = np.flatnonzero(~replaying)
            state, tokens, logprobs = self.state[rows], tokens[rows], logprobs[rows]
        column = state["generated"].copy()
        if len(rows) and column.max() >= self.outputs.shape[1]:
            self.outputs = _grow(self.outputs, (len(self.state), 2 * self.outputs.shape[1]))
        for name, values in (("token", tokens), ("logprob", logprobs), ("version", version)):
            self.outputs[name][rows, column] = values
        for place, row in enumerate(rows.tolist()):
            if (adapter := self.tickets[row].adapter) is not None:
                self.outputs["version"][row, column[place]] = adapter.version
        for row in rows[column == 0].tolist():
            self.tickets[row].first_s = now_s
        state["generated"] += 1
        state["position"] += 1
        state["token"] = tokens
        state["stopped"] = (self.end_ids[rows] == tokens[:, None]).any(1)
        if some_replay:  # then `state` is a copy
            self.state[rows] = state
        for place in np.flatnonzero(state["watched"]).tolist():
            if self._completes(int(rows[place]), int(tokens[place])):
                self.state["stopped"][rows[place]] = True
        ended = self.state["stopped"][rows] | (state["generated"] >= state["limit"])
        done: list[int] = rows[ended].tolist()
        return done

    def _replay(self, row: int) -> None:
        """Step over a token that is already known: its cache entry was the point of the step."""
        state = self.state[row : row + 1]
        state["position"] += 1
        state["token"] = self.tickets[row].request.input_ids[int(state["position"][0])]
        state["replay"] -= 1

    def _completes(self, row: int, token: int) -> bool:
        watch, state = self.tickets[row].stop_strings, self.state[row]
        long_enough = bool(state["prior"] + state["generated"] >= state["min_new"])
        return watch is not None and watch.push(token, may_stop=long_enough)

    def tokens_cached(self, row: int) -> tuple[int, ...]:
        """Return the tokens whose cache entries the row relies on: everything before its last one."""
        state = self.state[row]
        known = (*self.tickets[row].request.input_ids, *self.outputs["token"][row, : state["generated"]].tolist())
        return known[: int(state["position"])]

    def result(self, row: int, now_s: float, reason: StopReason | None = None) -> Generation:
        """Return what the row produced so far; the reason is worked out unless given."""
        ticket, count = self.tickets[row], int(self.state["generated"][row])
        outputs = self.outputs[row, :count]
        if reason is None:
            reason = StopReason.STOP if self.state["stopped"][row] else StopReason.LENGTH
        return Generation(
            output_ids=tuple(outputs["token"].tolist()),
            logprobs=tuple(outputs["logprob"].tolist()),
            version_spans=spans(outputs["version"]),
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
    if (versions == versions[0]).all():
        return (VersionSpan(start=0, stop=len(versions), version=int(versions[0])),)
    cuts = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
    return tuple(VersionSpan(start=start, stop=stop, version=int(versions[start])) for start, stop in pairwise(cuts))
