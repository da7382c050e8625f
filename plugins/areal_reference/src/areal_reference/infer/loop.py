"""The compute thread: admit, one step for everything running, retire; control messages between steps.

Knows: rows, cache, model and sampler, and the order in which they are used.
Does not know: asyncio; results and acknowledgements leave through callbacks that may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from attrs import define, field
from numpy.typing import NDArray
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError, GenerationFailed
from areal_core.contract.inference import Generation, Timings
from areal_reference.infer.adapters import NamedAdapters
from areal_reference.infer.config import CacheOnUpdate, ReferenceInferenceConfig
from areal_reference.infer.rows import RowTable, Ticket
from areal_reference.infer.runner import LENGTH_BUCKET, ModelRunner, StepWork, largest_invariant_tile
from areal_reference.infer.sampling import sample
from areal_reference.infer.weights import WeightStage
from areal_torch.device import release_cache
from areal_torch.traces import StepTraces

Outcome = Generation | ArealError
Drawn = tuple[NDArray[np.int64], NDArray[np.float32]]
Deliver = Callable[[Sequence[tuple[Ticket, Outcome]]], None]
TILES = (32, 8)
"""Rows per forward tried for deterministic mode, largest first; one at a time always works."""
TRACED_TOKENS = 200
"""Tokens of every row in a trace: enough to see what a token costs, and a file a browser can open."""


@define(kw_only=True, eq=False)
class Counters:
    """What the loop has done since it started. Written by its thread, read by any."""

    tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0


@define(kw_only=True, eq=False)
class GenerationLoop:
    """Owns the compute thread. Public methods may be called from any thread; `deliver` is called from ours."""

    runner: ModelRunner
    stage: WeightStage
    config: ReferenceInferenceConfig
    max_rows: int
    deliver: Deliver
    clock: Callable[[], float]
    traces: StepTraces
    adapters: NamedAdapters
    rows: RowTable = field(factory=RowTable)
    waiting: deque[Ticket] = field(factory=deque)
    counters: Counters = field(factory=Counters)
    paused: bool = False
    tile: int = 0
    _inbox: deque[Callable[[], None]] = field(factory=deque)
    _wake: threading.Event = field(factory=threading.Event)
    _stopping: bool = False
    _thread: threading.Thread | None = None
    owners: dict[tuple[int, ...], Ticket] = field(factory=dict)
    """Prefix and adapter -> a running ticket whose cache holds it, computed by the weights serving now."""
    recompute: bool = False

    def start(self, on_exit: Callable[[], None]) -> None:
        """Start the thread; `on_exit` is the last thing it calls."""
        if self.config.deterministic:
            self.tile = largest_invariant_tile(self._try_tile, TILES)
        self._thread = threading.Thread(target=self._run, args=(on_exit,), name="areal-generation", daemon=True)
        self._thread.start()

    def post(self, message: Callable[[], None]) -> None:
        """Have the thread call `message` between two steps. It must not raise."""
        self._inbox.append(message)
        self._wake.set()

    def submit(self, ticket: Ticket) -> None:
        """Queue a request."""
        self.post(lambda: self.waiting.append(ticket))

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request; nothing is delivered for it."""
        self.post(lambda: self._forget(ticket))

    def stop(self) -> None:
        """End the thread after the step under way; whatever is in flight fails."""
        self._stopping = True
        self._wake.set()

    def join(self) -> None:
        """Wait for the thread. Quick once `on_exit` was called."""
        if self._thread is not None:
            self._thread.join()

    def pause(self, *, abort: bool) -> None:
        """Compute no more tokens. Message; with `abort`, everything in flight is delivered as it is."""
        self.paused = True
        if abort:
            now = self.clock()
            partial = [(t, self.rows.result(row, now, StopReason.ABORTED)) for row, t in enumerate(self.rows.tickets)]
            empty = [(ticket, _nothing(now - ticket.arrived_s)) for ticket in self.waiting]
            self.waiting.clear()
            self.retire(range(self.rows.count))
            self.deliver([*partial, *empty])

    def resume(self) -> None:
        """Compute again. Message.

        Raises:
            GenerationFailed: the engine slept and was given no weights since.
        """
        self.needs_weights()
        self.paused = False

    def sleep(self) -> None:
        """Free weights and cache. Message; requests frozen by the pause are computed anew from their tokens.

        Raises:
            GenerationFailed: tokens are being computed.
        """
        if not self.paused:
            raise GenerationFailed("the engine cannot sleep", why="it is not paused", fix="call pause first")
        if not self.stage.asleep:
            self.traces.end()
            self.owners.clear()
            self.recompute = self.rows.count > 0
            self.runner.cache.shrink()
            self.stage.sleep()
            release_cache(self.runner.device)

    def needs_weights(self) -> None:
        """Raise GenerationFailed if nothing serves."""
        if self.stage.empty:
            raise GenerationFailed(
                "the engine has no weights", why="it slept", fix="call wake, receive_weights and commit_weights first"
            )

    def commit(self, version: int) -> None:
        """Serve the staged weights from the next token on. Message."""
        if self.stage.commit(version):
            self.traces.end()
            self.owners.clear()
            self.recompute |= self.config.kv_on_update is CacheOnUpdate.RECOMPUTE and self.rows.count > 0

    def _run(self, on_exit: Callable[[], None]) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                while self._inbox:
                    self._inbox.popleft()()
                if self.paused or not (self.rows.count or self.waiting):
                    self._wake.wait()
                    continue
                started = self.clock()
                try:
                    with self.traces.step(self.stage.version + 1, 0, "token", calls=TRACED_TOKENS):
                        self._step()
                except Exception as exc:
                    self._fail_all(exc)
                self.counters.busy_s += self.clock() - started
        finally:
            while self._inbox:
                self._inbox.popleft()()
            self._fail_all(None)
            self.traces.end()
            on_exit()

    def _fail_all(self, cause: Exception | None) -> None:
        """Deliver a failure to everything in flight and start from empty rows."""
        what = "the engine was closed" if cause is None else f"a generation step raised {type(cause).__name__}"
        error = GenerationFailed(what, why="" if cause is None else str(cause))
        error.__cause__ = cause
        failed = [*self.rows.tickets, *self.waiting]
        self.waiting.clear()
        self.owners.clear()
        if self.rows.count and cause is not None:
            self.runner.cache.clear(range(self.rows.count))
        self.rows.remove(range(self.rows.count))
        self.deliver([(ticket, error) for ticket in failed])

    def _forget(self, ticket: Ticket) -> None:
        if ticket in self.rows.tickets:
            self.retire([self.rows.tickets.index(ticket)])
        elif ticket in self.waiting:
            self.waiting.remove(ticket)

    def retire(self, gone: Sequence[int]) -> None:
        """Free rows; the last rows move into the gaps, and so do their cache entries."""
        for row in gone:
            ticket = self.rows.tickets[row]
            if self.owners.get(ticket.shared) is ticket:
                del self.owners[ticket.shared]
        moves = self.rows.remove(gone)
        if moves:
            source, target = zip(*moves, strict=True)
            self.runner.cache.move(source, target, int(self.rows.positions[list(target)].max()))

    def _admit(self) -> list[int]:
        """Move waiting requests into rows while rows, cache and the step's prompt budget allow; return those rows."""
        budget, now = self.config.prefill_tokens, self.clock()
        limit_bytes = int(self.config.cache_gib * 2**30)
        longest = int(self.rows.state["final"][: self.rows.count].max(initial=0))
        fresh: list[int] = []
        while self.waiting and self.rows.count < self.max_rows:
            ticket = self.waiting[0]
            longest = max(longest, ticket.final_length)
            if self.rows.count and self.runner.cache.bytes_for(self.rows.count + 1, longest) > limit_bytes:
                break
            if ticket.shared not in self.owners:
                if fresh and len(ticket.prefix) > budget:
                    break
                budget -= len(ticket.prefix)
                self.owners[ticket.shared] = ticket
            self.waiting.popleft()
            ticket.admitted_s = now
            fresh.append(self.rows.add(ticket))
        return fresh

    def _work(self, fresh: Sequence[int]) -> StepWork:
        """Return the next step: every row's last token, and the prefixes of new rows, computed once where equal."""
        prompts: list[tuple[int, Sequence[int]]] = []
        copies: list[tuple[int, int, int]] = []
        if self.recompute:
            prompts = [
                (row, ids) for row in range(self.rows.count - len(fresh)) if (ids := self.rows.tokens_cached(row))
            ]
            self.recompute = False
        place = {ticket: row for row, ticket in enumerate(self.rows.tickets)} if fresh else {}
        for row in fresh:
            prefix = self.rows.tickets[row].prefix
            owner = place[self.owners[self.rows.tickets[row].shared]]
            if prefix and owner == row:
                prompts.append((row, prefix))
            elif prefix:
                copies.append((owner, row, len(prefix)))
        self.counters.prompt_tokens += sum(len(ids) for _, ids in prompts)
        self.counters.shared_tokens += sum(length for *_, length in copies)
        return StepWork(tokens=self.rows.tokens, positions=self.rows.positions, prompts=prompts, copies=copies)

    def _step(self) -> None:
        """Compute one token for every row."""
        fresh = self._admit()
        count = self.rows.count
        self.runner.cache.grow(count, int(self.rows.positions.max()) + 1)
        work = self._work(fresh)
        tokens, logprobs = self._drawn(work)
        version = self.stage.version
        bad = np.flatnonzero(~np.isfinite(logprobs)).tolist()
        now = self.clock()
        num_new = count - int((self.rows.state["replay"][:count] > 0).sum())
        done = self.rows.record(tokens, logprobs, version, now)
        self.counters.steps += 1
        self.counters.tokens += num_new
        if done or bad:
            outcomes: list[tuple[Ticket, Outcome]] = []
            for row in sorted({*done, *bad}):
                outcome = _not_finite(version) if row in bad else self.rows.result(row, now)
                outcomes.append((self.rows.tickets[row], outcome))
            if bad:
                self.runner.cache.clear(bad)
            self.retire(sorted({*done, *bad}))
            self.deliver(outcomes)

    def _drawn(self, work: StepWork) -> Drawn:
        """Return a token and its log-prob for every row: one forward for the policy, one for each adapter in use."""
        draw = self._draw_tiles if self.tile else self.draw
        used = [ticket.adapter for ticket in self.rows.tickets]
        if not any(used):
            return draw(work)
        tokens = np.zeros(self.rows.count, dtype=np.int64)
        logprobs = np.zeros(self.rows.count, dtype=np.float32)
        for adapter in dict.fromkeys(used):
            rows = np.flatnonzero([other is adapter for other in used])
            with self.adapters.applied(adapter):
                tokens[rows], logprobs[rows] = draw(work.part(rows))
        return tokens, logprobs

    def draw(self, work: StepWork) -> Drawn:
        rows = np.arange(self.rows.count) if work.rows is None else work.rows
        with torch.inference_mode():
            logits = self.runner.logits(work)
            tokens, logprobs = sample(logits, self.rows.sampling(rows))
        return tokens.cpu().numpy(), logprobs.cpu().numpy()

    def _draw_tiles(self, work: StepWork) -> Drawn:
        """Draw tile by tile, every tile the same shape, so that no row feels another."""
        self.runner.fill_alone(work.prompts)
        self.runner.copy_prefixes(work.copies)
        all_rows = np.arange(self.rows.count) if work.rows is None else work.rows
        tokens = np.zeros(len(all_rows), dtype=np.int64)
        logprobs = np.zeros(len(all_rows), dtype=np.float32)
        with torch.inference_mode():
            for places in self.runner.tiles(work.positions, self.tile):
                rows = all_rows[places]
                logits = self.runner.tile_logits(rows, work.tokens[places], work.positions[places], self.tile)
                filled = np.concatenate([rows, np.full(self.tile - len(rows), rows[0])])
                drawn, chance = sample(logits, self.rows.sampling(filled, fixed_shape=True))
                tokens[places] = drawn.cpu().numpy()[: len(rows)]
                logprobs[places] = chance.cpu().numpy()[: len(rows)]
        return tokens, logprobs

    @torch.inference_mode()
    def _try_tile(self, tile: int, shift: int) -> Tensor:
        """Run `tile` made-up rows, each `shift` places further on, and return what they computed, in order."""
        cache, generator = self.runner.cache, torch.Generator().manual_seed(0)
        cache.grow(tile, LENGTH_BUCKET)
        place = (np.arange(tile) + shift) % tile
        for slab in (*cache.keys, *cache.values):
            made_up = torch.randn(tile, *slab.shape[1:], generator=generator)
            slab[place] = made_up.to(slab)
        numbers = np.argsort(place)
        positions = numbers * 7 % (LENGTH_BUCKET - 1)
        logits = self.runner.tile_logits(np.arange(tile), numbers % self.runner.vocabulary, positions, tile)
        logprobs = torch.log_softmax(logits.float(), -1)
        cache.clear(range(cache.num_rows))
        return torch.cat([logprobs.double(), logprobs.exp().cumsum(-1, dtype=torch.float64)], -1)[place]


def _nothing(waited_s: float) -> Generation:
    """Return the result of a request that was aborted before its first token."""
    timings = Timings(queued_s=waited_s, total_s=waited_s)
    return Generation(output_ids=(), logprobs=(), version_spans=(), stop_reason=StopReason.ABORTED, timings=timings)


def _not_finite(version: int) -> GenerationFailed:
    return GenerationFailed(
        f"version {version} of the policy gave no finite log-probability",
        why="its weights, or the activations they lead to, hold NaN or infinity",
        fix="look at the trainer's loss and gradient norm before that version",
    )
