"""Weights that a server's own ranks take in place: what is told to whom, and what costs a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from attrs import define, field

from areal_core.contract.errors import CoverageError, GenerationFailed, VersionRegressed, WeightSyncError
from areal_core.contract.inference import PauseMode
from areal_core.contract.weights import WeightManifest
from areal_core.weights.tensors import manifest_of
from areal_serving.direct import DirectRanks
from areal_serving.http import ServerAnswer
from areal_torch.collective.rank_slot import RankSlot
from areal_torch.testing.serving import FolderWeights

from .toy import beside, started


@define
class ScriptedDirect:
    """Remembers what ranks were told; `fails_at` one of them."""

    fails_at: str = ""
    told: list[Any] = field(factory=list)

    def _note(self, what: str, *more: Any) -> None:
        self.told.append((what, *more) if more else what)
        if what == self.fails_at:
            raise ServerAnswer(f"/{what}", 400, "no")

    async def ranks(self, api: Any, spec: Any) -> DirectRanks:
        """Have two ranks."""
        return DirectRanks(count=2, device="cpu")

    async def join(self, api: Any, slot: RankSlot, held: str) -> None:
        """Join."""
        self._note("join", slot.group_name, held)

    async def take(self, api: Any, slot: RankSlot, manifest: WeightManifest) -> None:
        """Take."""
        self._note("take")

    async def received(self, api: Any) -> Mapping[str, str]:
        """Tell."""
        self._note("received")
        return {"a": "1"}

    async def stamp(self, api: Any, version: int, *, keep_cache: bool) -> None:
        """Stamp."""
        self._note("stamp", version, keep_cache)


@define
class ScriptedSource:
    """A sender that gives slots of a group."""

    manifest: WeightManifest
    group: str = "one"
    held: list[str] = field(factory=list)
    closed: int = 0

    def take_slot(self, num_ranks: int, *, device: str = "cpu", held: str = "", signs: bool = False) -> RankSlot:
        """Give a slot."""
        self.held.append(held)
        return RankSlot(
            address="127.0.0.1",
            port=1,
            group_name=self.group,
            backend="gloo",
            first_rank=1,
            num_ranks=num_ranks,
            world_size=1 + num_ranks,
            timeout_s=1.0,
        )

    def wait_finished(self) -> None:
        """Be finished."""

    def buckets(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Not read: the ranks have slots."""
        raise AssertionError

    def close(self) -> None:
        """Count."""
        self.closed += 1


def sender(model, version=1, **options):
    """Return a source that announces the model's own tensors."""
    return ScriptedSource(manifest_of(list(FolderWeights.of(model).tensors.items()), version=version), **options)


def test_ranks_join_take_and_stamp(model):
    """What is taken serves from the commit on, not before; the source is closed, the cache is as options say."""

    async def run():
        direct = ScriptedDirect()
        async with beside(model, direct=True, dialect_of_ranks=direct) as (engine, _):
            await engine.pause(PauseMode.KEEP)
            source = sender(model)
            receipt = await engine.receive_weights(source, 1)
            before = (await engine.status()).version
            await engine.commit_weights(1)
            return direct.told, receipt, before, (await engine.status()).version, source.closed

    told, receipt, before, after, closed = asyncio.run(run())

    assert told == [("join", "one", ""), "take", "received", ("stamp", 1, True)]
    assert (receipt.version, receipt.fingerprints, before, after) == (1, {"a": "1"}, 0, 1)
    assert closed


def test_the_group_is_kept_while_the_sender_keeps_it(model):
    """Joining again costs a new process group of all ranks."""

    async def run():
        direct = ScriptedDirect()
        async with beside(model, direct=True, dialect_of_ranks=direct) as (engine, _):
            await engine.pause(PauseMode.KEEP)
            sources = [sender(model, 1), sender(model, 2), sender(model, 3, group="two")]
            for version, source in enumerate(sources, start=1):
                await engine.receive_weights(source, version)
                await engine.commit_weights(version)
            return [source.held for source in sources], [word for word in direct.told if word[0] == "join"]

    held, joins = asyncio.run(run())

    assert held == [[""], ["one"], ["one"]]
    assert joins == [("join", "one", ""), ("join", "two", "one")]


def test_nothing_is_touched_before_everything_is_checked(model):
    """An old version, an engine that computes, or a model that is another: no rank is told to take anything."""

    async def run():
        direct = ScriptedDirect()
        async with beside(model, direct=True, dialect_of_ranks=direct) as (engine, _):
            with pytest.raises(WeightSyncError, match="not paused"):
                await engine.receive_weights(sender(model), 1)
            await engine.pause(PauseMode.KEEP)
            with pytest.raises(VersionRegressed):
                await engine.receive_weights(sender(model, 0), 0)
            with pytest.raises(CoverageError):
                await engine.receive_weights(ScriptedSource(manifest_of([("x", torch.zeros(1))], version=1)), 1)
            return direct.told, (await engine.status()).metrics["num_restarts"]

    assert asyncio.run(run()) == ([], 0.0)


@pytest.mark.parametrize(("fails_at", "restarts"), [("join", 0.0), ("take", 1.0), ("received", 1.0)])
def test_half_an_update_costs_the_server(model, fails_at, restarts):
    """Nobody knows which weights it has; before the ranks began, it has those it had."""

    async def run():
        direct = ScriptedDirect(fails_at)
        async with started(model, direct=True, dialect_of_ranks=direct) as engine:
            await engine.pause(PauseMode.KEEP)
            with pytest.raises(WeightSyncError, match="did not arrive whole"):
                await engine.receive_weights(sender(model), 1)
            await engine.running.server.api()
            with pytest.raises(WeightSyncError, match="nothing is held"):
                await engine.commit_weights(1)
            return (await engine.status()).metrics["num_restarts"]

    assert asyncio.run(run()) == restarts


def test_an_abort_before_the_commit_costs_the_server(model):
    """Its old weights are gone. A second abort costs nothing."""

    async def run():
        async with started(model, direct=True, dialect_of_ranks=ScriptedDirect()) as engine:
            await engine.pause(PauseMode.KEEP)
            await engine.receive_weights(sender(model), 1)
            for _ in range(2):
                await engine.abort_weights()
            await engine.running.server.api()
            return engine.running.direct.holds(1), (await engine.status()).metrics["num_restarts"]

    assert asyncio.run(run()) == (False, 1.0)


def test_only_the_server_that_took_a_version_may_stamp_it(model):
    """One that was started meanwhile has the old weights."""

    async def run():
        direct = ScriptedDirect()
        async with started(model, direct=True, dialect_of_ranks=direct, max_restarts=9) as engine:
            await engine.pause(PauseMode.KEEP)
            await engine.receive_weights(sender(model), 1)
            await engine.running.server.replace(engine.serving)
            with pytest.raises((WeightSyncError, GenerationFailed), match="gone"):
                await engine.commit_weights(1)
            return direct.told, (await engine.status()).version

    told, version = asyncio.run(run())

    assert ("stamp", 1, True) not in told
    assert version == 0
