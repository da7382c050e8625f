"""The versions machine: requests, updates, pauses and cancellations in any order, and what must hold throughout.

hypothesis runs plain functions and an engine lives in an event loop, so the two are kept apart: hypothesis makes
sequences of plain `operations` (`examples`, the same ones every time), `VersionsMachine` plays one of them on an
engine, and a sequence that once failed is kept as a line of `traces/versions.json` and played for ever.

Knows: operations, how they change what must be true, telling weights as the proof of every stamp.
Does not know: how an engine computes.
"""

from __future__ import annotations

import asyncio
import json
from importlib import resources

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from areal_conformance.benches.infer import LONG, InferBench
from areal_conformance.oracles.infer_judging import teller, true_to_versions, versions_of
from areal_conformance.outcome import Violation, expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import WeightSyncError
from areal_core.contract.inference import Generation, GenerationRequest, InferenceEngine, PauseMode

Operation = tuple[str | int, ...]
"""A word and its numbers: ("submit", 3, 20), ("generate", 5), ("update",), ("pause", "keep"), ..."""


@define
class _Call:
    """A request on its way: `since` is the version that served when it was made, `upto` when it was last looked at."""

    request: GenerationRequest
    task: asyncio.Task[Generation]
    since: int
    cancelled: bool = False


@define
class VersionsMachine:
    """Plays operations on an engine at rest and judges what comes out."""

    bench: InferBench
    engine: InferenceEngine
    version: int = 0
    staged: int | None = None
    paused: bool = False
    _frozen_at: int = 0
    _calls: list[_Call] = field(factory=list)
    _played: list[Operation] = field(factory=list)

    async def play(self, operations: list[Operation]) -> None:
        """Play a sequence from rest to rest; a Violation names the operations up to there."""
        try:
            self.version = await self.bench.update(self.engine, teller(self.bench, await self._serving() + 1))
            for operation in operations:
                self._played.append(operation)
                await getattr(self, f"_{operation[0]}")(*operation[1:])
                await self._invariants()
            await self._finish()
        except Violation as violation:
            raise Violation(f"{violation}\ntrace: {json.dumps(self._played)}") from None

    async def _serving(self) -> int:
        return (await self.engine.status()).version

    async def _invariants(self) -> None:
        status = await self.engine.status()
        expect(status.version == self.version, f"version {self.version} serves, status shows {status.version}")
        expect(status.paused == self.paused, f"paused is {self.paused}, status shows {status.paused}")
        if self.paused:
            made = status.tokens_generated - self._frozen_at
            expect(made == 0, f"the engine is paused, yet {made} tokens were generated")

    async def _submit(self, prompt: int, tokens: int) -> None:
        request = self.bench.ask(5, *range(2, 2 + prompt), name=f"call-{len(self._calls)}", max_new_tokens=tokens)
        task = self.bench.call(self.engine.generate(request))
        self._calls.append(_Call(request, task, self.version))
        await self.bench.turns(2)

    async def _generate(self, tokens: int) -> None:
        if self.paused or all(call.task.done() for call in self._calls):
            await self.bench.turns(10)
            return
        goal = (await self.engine.status()).tokens_generated + tokens

        async def reached() -> bool:
            status = await self.engine.status()
            return status.tokens_generated >= goal or all(call.task.done() for call in self._calls)

        await self.bench.until(reached, f"{tokens} more tokens of {len(self._calls)} requests")

    async def _receive(self) -> None:
        wanted = (self.staged or self.version) + 1
        await self.engine.receive_weights(teller(self.bench, wanted).offer(wanted), wanted)
        self.staged = wanted

    async def _commit(self) -> None:
        if self.staged is None:
            return
        await self.engine.commit_weights(self.staged)
        self.version, self.staged = self.staged, None

    async def _drop(self) -> None:
        await self.engine.abort_weights()
        if self.staged is not None:
            try:
                await self.engine.commit_weights(self.staged)
            except WeightSyncError:
                self.staged = None
            else:
                raise Violation(f"version {self.staged} was dropped, yet its commit returned")

    async def _update(self) -> None:
        await self._receive()
        await self._commit()

    async def _pause(self, mode: str) -> None:
        await self.engine.pause(PauseMode(mode))
        self.paused = True
        self._frozen_at = (await self.engine.status()).tokens_generated

    async def _resume(self) -> None:
        await self.engine.resume()
        self.paused = False

    async def _cancel(self, number: int) -> None:
        if self._calls:
            call = self._calls[number % len(self._calls)]
            call.cancelled = call.task.cancel() or call.cancelled

    async def _finish(self) -> None:
        """Bring everything home: what was not cancelled comes back, and every token tells who computed it."""
        await self._resume()
        await self._generate(3)
        for _ in range(2):
            # A call the engine had not yet heard of when the first pause came waits; the second brings it home.
            await self.engine.pause(PauseMode.ABORT)
            await self.engine.resume()
            await self.bench.turns(5)
        await self.engine.pause(PauseMode.ABORT)
        outcomes = await self.bench.ended([call.task for call in self._calls], "every request to come back")
        await self.engine.resume()
        await self.engine.abort_weights()
        for call, outcome in zip(self._calls, outcomes, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                expect(call.cancelled, f"{call.request.request_id!r} was lost: cancelled, but not by its caller")
                continue
            if isinstance(outcome, BaseException):
                raise Violation(f"{call.request.request_id!r} failed: {outcome!r}")
            self._judge(call, outcome)

    def _judge(self, call: _Call, result: Generation) -> None:
        true_to_versions(result, call.request)
        odd = {version for version in versions_of(result) if not call.since <= version <= self.version}
        told = f"was made when version {call.since} served, {self.version} is the last"
        expect(not odd, f"{call.request.request_id!r} {told}; its tokens are stamped {sorted(odd)}")
        wanted = call.request.sampling.max_new_tokens
        if result.stop_reason is not StopReason.ABORTED:
            got = (len(result.output_ids), result.stop_reason)
            expect(got == (wanted, StopReason.LENGTH), f"{wanted} tokens, ended by length, were due; got {got}")


def operations() -> SearchStrategy[list[Operation]]:
    """Return the strategy of sequences: at least one request, updates and pauses anywhere around it."""
    submit = st.tuples(st.just("submit"), st.integers(0, 20), st.sampled_from([1, 3, 20, LONG, LONG]))
    others = st.one_of(
        submit,
        st.tuples(st.just("generate"), st.integers(1, 9)),
        st.tuples(st.sampled_from(["update", "update", "receive", "commit", "drop"])),
        st.tuples(st.just("pause"), st.sampled_from(["keep", "keep", "abort"])),
        st.tuples(st.just("resume")),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
    )
    return st.builds(lambda first, rest: [first, *rest], submit, st.lists(others, min_size=4, max_size=16))


def traces() -> dict[str, list[Operation]]:
    """Return the sequences that found something once, by what they showed."""
    text = resources.files("areal_conformance.machines").joinpath("traces/versions.json").read_text("utf-8")
    return {name: [tuple(operation) for operation in made] for name, made in json.loads(text).items()}
