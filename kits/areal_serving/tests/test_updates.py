"""New weights: staged beside what serves, proved by the server, loaded between two tokens, all or nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading

import pytest
import torch

from areal_core.contract.errors import CoverageError, FingerprintMismatch, VersionRegressed, WeightSyncError
from areal_core.contract.inference import PauseMode
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_torch.testing.serving import OfferedWeights, ask

from .toy import beside
from .toy_server import mark_of, token


def mark(weights):
    """Return what the toy makes of these weights."""
    return mark_of({name: fingerprint(tensor) for name, tensor in weights.tensors.items()})


def memory_files():
    """Return how many anonymous segments this process holds."""
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))  # noqa: PTH208
    return sum("areal-staged" in link for link in links)


def tokens(mark, prompt, start, stop):
    """Return tokens [start, stop) that weights with this mark compute."""
    return [token(mark, len(prompt) + n) for n in range(start, stop)]


def versions(generation):
    """Return each token's version."""
    return [s.version for s in generation.version_spans for _ in range(s.start, s.stop)]


def test_a_version_is_received_while_generation_goes_on_and_serves_from_the_next_token(model, weights):
    """Every token has the version of the weights that computed it; the server was paused around the load only."""

    async def run():
        async with beside(model) as (engine, toy):
            old, new = toy.mark, weights(1)
            call = asyncio.ensure_future(engine.generate(ask(5, 9, max_new_tokens=4)))
            await engine.until_in_server(1)
            toy.compute(1)
            receipt = await engine.receive_weights(new.offer(3), 3)
            toy.compute(1)
            before = (await engine.status()).version
            await engine.commit_weights(3)
            await engine.commit_weights(3)
            toy.compute(2)
            return old, new, receipt, before, (await engine.status()).version, await call, toy.log

    old, new, receipt, before, after, generation, log = asyncio.run(run())

    assert receipt.fingerprints == {name: fingerprint(tensor) for name, tensor in new.tensors.items()}
    assert (before, after) == (0, 3)
    assert versions(generation) == [0, 0, 3, 3]
    assert list(generation.output_ids) == tokens(old, (5, 9), 0, 2) + tokens(mark(new), (5, 9), 2, 4)
    assert log == ["generate areal-1", "prove", "pause keep", "load 3", "resume"]


@pytest.mark.parametrize("mode", list(PauseMode))
def test_an_update_within_a_pause_leaves_it_paused(model, weights, mode):
    """The server is neither paused again nor resumed; requests wait until `resume` and get the new version."""

    async def run():
        async with beside(model) as (engine, toy):
            await engine.pause(mode)
            call = asyncio.ensure_future(engine.generate(ask(5, max_new_tokens=2)))
            await engine.receive_weights(weights(1).offer(1), 1)
            await engine.commit_weights(1)
            paused = (await engine.status()).paused, toy.paused, call.done()
            toy.auto = True
            await engine.resume()
            return paused, await call, toy.log

    paused, generation, log = asyncio.run(run())

    assert (True, mode.value, False) == paused
    assert versions(generation) == [1, 1]
    assert log[:3] == [f"pause {mode.value}", "prove", "load 1"]


def test_a_request_on_its_way_during_an_update_never_uses_the_old_prefix_cache(model, weights):
    """It is sent before the commit, arrives after it, and would find an old entry: it is done again."""

    async def run():
        async with beside(model) as (engine, toy):
            toy.auto, new = True, weights(1)
            await engine.generate(ask(5, 9, max_new_tokens=2))
            arrive, generate, spaces = asyncio.Event(), type(engine.toy).generate, []

            async def late(self, api, call):
                spaces.append(call.cache_space)
                await arrive.wait()
                return await generate(self, api, call)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(engine.toy), "generate", late)
                call = asyncio.ensure_future(engine.generate(ask(5, 9, max_new_tokens=2)))
                await engine.receive_weights(new.offer(1), 1)
                await engine.commit_weights(1)
                arrive.set()
                return new, await call, spaces

    new, generation, spaces = asyncio.run(run())

    assert list(generation.output_ids) == tokens(mark(new), (5, 9), 0, 2)
    assert [space.rpartition("@")[0] for space in spaces] == ["@0", "@1"]


def test_another_run_on_the_same_server_never_uses_the_prefix_cache_of_the_first(model):
    """Both have a version 0, of other weights: a server of `rollout.options.url` outlives runs."""

    async def space():
        async with beside(model) as (engine, _):
            return engine.cache_space(ask(5, 9))

    assert asyncio.run(space()) != asyncio.run(space())


def test_a_request_on_its_way_that_found_nothing_in_the_cache_is_not_done_again(model, weights):
    """It began after the update and used no old keys and values: what it has is of the new version."""

    async def run():
        async with beside(model) as (engine, toy):
            call = asyncio.ensure_future(engine.generate(ask(5, 9, max_new_tokens=2)))
            await engine.until_in_server(1)
            await engine.receive_weights(weights(1).offer(1), 1)
            await engine.commit_weights(1)
            toy.compute(2)
            return versions(await call), toy.log.count("generate areal-1"), len(toy.log)

    assert asyncio.run(run()) == ([1, 1], 1, 5)


def test_requests_that_wait_for_a_slot_through_an_update_are_wholly_of_the_new_version(model, weights):
    """With the cache space of the new version."""

    async def run():
        async with beside(model, concurrent=1) as (engine, toy):
            calls = [asyncio.ensure_future(engine.generate(ask(5, 9, max_new_tokens=2))) for _ in range(3)]
            await engine.until_in_server(1)
            toy.compute(1)
            await engine.receive_weights(weights(1).offer(1), 1)
            await engine.commit_weights(1)
            toy.auto = True
            toy.compute(1)
            return [versions(generation) for generation in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == [[0, 1], [1, 1], [1, 1]]


def test_only_what_is_held_can_be_committed(model, weights):
    """Nothing, another version, one aborted, one already replaced: refused, and the old version serves."""

    async def run():
        async with beside(model) as (engine, _):
            told = []
            for version in (1, 2):
                with pytest.raises(WeightSyncError) as caught:
                    await engine.commit_weights(version)
                told.append(caught.value.why)
                await engine.receive_weights(weights(1).offer(1), 1)
            await engine.abort_weights()
            await engine.abort_weights()
            with pytest.raises(WeightSyncError):
                await engine.commit_weights(1)
            return told, (await engine.status()).version, memory_files()

    assert asyncio.run(run()) == (["nothing is held", "version 1 is held"], 0, 0)


def test_receiving_twice_keeps_the_later_and_frees_the_earlier(model, weights):
    """One version held at a time, one served."""

    async def run():
        before = memory_files()
        async with beside(model) as (engine, toy):
            await engine.receive_weights(weights(1).offer(1), 1)
            await engine.receive_weights(weights(2).offer(2), 2)
            held = memory_files() - before
            await engine.commit_weights(2)
            await engine.receive_weights(weights(3).offer(3), 3)
            await engine.commit_weights(3)
            served, found = memory_files() - before, toy.mark
        return held, served, found, memory_files() - before

    assert asyncio.run(run()) == (1, 1, mark(weights(3)), 0)


def test_a_version_not_newer_is_refused(model, weights):
    """Also the one that serves; its source is closed."""

    async def run():
        async with beside(model) as (engine, _):
            await engine.receive_weights(weights(1).offer(2), 2)
            await engine.commit_weights(2)
            sources = [weights(1).offer(version) for version in (1, 2)]
            for version, source in enumerate(sources, 1):
                with pytest.raises(VersionRegressed):
                    await engine.receive_weights(source, version)
            return [source.closed for source in sources]

    assert asyncio.run(run()) == [True, True]


def broken(weights, how):
    """Return a source that breaks one rule."""
    offer = weights.offer(1)
    name, tensor = offer.tensors[0]
    if how == "missing":
        offer.tensors.pop()
    elif how == "twice":
        offer.tensors.append(offer.tensors[0])
    elif how == "shape":
        offer.tensors[0] = (name, tensor[1:])
    elif how == "unknown":
        tensors = {**weights.tensors, "extra.weight": torch.zeros(2)}
        offer = OfferedWeights(manifest_of(tensors.items(), version=1), list(tensors.items()))
    elif how == "integers":
        tensors = {**weights.tensors, name: tensor.int()}
        offer = OfferedWeights(manifest_of(tensors.items(), version=1), list(tensors.items()))
    elif how == "version":
        offer = weights.offer(7)
    elif how == "raises":
        offer.before_bucket = lambda _: (_ for _ in ()).throw(WeightSyncError("the sender is gone"))
    return offer


@pytest.mark.parametrize("how", ["missing", "twice", "shape", "unknown", "integers", "version", "raises"])
def test_a_broken_source_changes_nothing(model, weights, how):
    """A typed error, nothing held, no memory kept, and the next update works."""

    async def run():
        async with beside(model) as (engine, _):
            source = broken(weights(1), how)
            with pytest.raises(WeightSyncError) as caught:
                await engine.receive_weights(source, 1)
            with pytest.raises(WeightSyncError, match="cannot be committed"):
                await engine.commit_weights(1)
            left = memory_files()
            await engine.receive_weights(weights(2).offer(1), 1)
            await engine.commit_weights(1)
            return caught.value, source.closed, left

    error, closed, left = asyncio.run(run())

    assert isinstance(error, CoverageError) or how in ("version", "raises")
    assert (closed, left) == (True, 0)


def test_wrong_fingerprints_and_failures_of_the_server_drop_what_was_staged(model, weights):
    """The engine's workers read other bytes, or cannot read: what is held from before stays held."""

    async def run():
        async with beside(model) as (engine, _):
            await engine.receive_weights(weights(1).offer(1), 1)
            errors = []
            for how in ("lie", "500"):
                await engine.misbehave("prove", how)
                with pytest.raises(Exception) as caught:
                    await engine.receive_weights(weights(2).offer(2), 2)
                errors.append(type(caught.value).__name__)
            left = memory_files()
            await engine.commit_weights(1)
            return errors, left

    assert asyncio.run(run()) == (["FingerprintMismatch", "GenerationFailed"], 1)
    assert issubclass(FingerprintMismatch, WeightSyncError)


@pytest.mark.parametrize("end", ["abort", "cancel", "close"])
def test_a_receive_can_be_ended_while_tensors_arrive(model, weights, end):
    """By `abort_weights`, by its caller, by `close`; also when the source blocks; its memory is freed."""

    async def run():
        async with beside(model) as (engine, _):
            begun, go_on = threading.Event(), threading.Event()
            source = weights(1).offer(1)
            source.before_bucket = lambda number: number == 1 and (begun.set(), go_on.wait(10))
            call = asyncio.ensure_future(engine.receive_weights(source, 1))
            await engine.until(begun.is_set)
            if end == "abort":
                await engine.abort_weights()
            elif end == "cancel":
                call.cancel()
            else:
                await engine.close()
            outcome = (await asyncio.gather(call, return_exceptions=True))[0]
            go_on.set()
            await engine.until(lambda: source.closed and memory_files() == 0)
            return type(outcome).__name__

    names = {"abort": "WeightSyncError", "cancel": "CancelledError", "close": "GenerationFailed"}
    assert asyncio.run(run()) == names[end]


@pytest.mark.parametrize("end", ["abort", "cancel", "close"])
def test_a_receive_can_be_ended_while_the_server_proves(model, weights, end):
    """As above, with everything staged."""

    async def run():
        async with beside(model) as (engine, toy):
            await engine.misbehave("prove", "hang")
            call = asyncio.ensure_future(engine.receive_weights(weights(1).offer(1), 1))
            await engine.until(lambda: "prove" in toy.log)
            if end == "abort":
                await engine.abort_weights()
            elif end == "cancel":
                call.cancel()
            else:
                await engine.close()
            outcome = (await asyncio.gather(call, return_exceptions=True))[0]
            return type(outcome).__name__, memory_files()

    names = {"abort": "WeightSyncError", "cancel": "CancelledError", "close": "GenerationFailed"}
    assert asyncio.run(run()) == (names[end], 0)


def test_what_is_being_loaded_is_not_dropped_by_what_comes_meanwhile(model, weights):
    """An abort and another receive during a commit: the commit ends as it began."""

    async def run():
        async with beside(model) as (engine, toy):
            await engine.receive_weights(weights(1).offer(1), 1)
            loading, go_on, load = asyncio.Event(), asyncio.Event(), type(engine.toy).load

            async def slow(self, api, *args, **options):
                loading.set()
                await go_on.wait()
                await load(self, api, *args, **options)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(engine.toy), "load", slow)
                commit = asyncio.ensure_future(engine.commit_weights(1))
                await loading.wait()
                commit.cancel()
                await engine.abort_weights()
                await engine.receive_weights(weights(2).offer(2), 2)
                go_on.set()
                await engine.commit_weights(2)
            return toy.log, toy.mark, (await engine.status()).version, memory_files()

    log, found, version, left = asyncio.run(run())

    assert [entry for entry in log if entry.startswith("load")] == ["load 1", "load 2"]
    assert (mark(weights(2)), 2, 1) == (found, version, left)


@pytest.mark.parametrize("order", list(itertools.permutations(["receive", "abort", "commit", "pause"])))
def test_every_order_of_calls_ends_with_version_and_weights_that_fit(model, weights, order):
    """Whatever is refused: the version told is that of the weights in the server, and it computes."""

    async def run():
        async with beside(model) as (engine, toy):
            marks = {0: toy.mark, 1: mark(weights(1))}
            calls = {
                "receive": lambda: engine.receive_weights(weights(1).offer(1), 1),
                "abort": engine.abort_weights,
                "commit": lambda: engine.commit_weights(1),
                "pause": lambda: engine.pause(PauseMode.KEEP),
            }
            await asyncio.gather(*(calls[name]() for name in order), return_exceptions=True)
            await engine.resume()
            toy.auto = True
            generation = await engine.generate(ask(5, 9, max_new_tokens=1))
            version = (await engine.status()).version
            return version, versions(generation), marks[version] == toy.mark

    version, stamped, fits = asyncio.run(run())

    assert (True, [version]) == (fits, stamped)
