"""Pausing, cancelling and closing: nobody waits for ever, nothing is lost, nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import threading

import pytest
import torch

from areal_core.contract.data import StopReason
from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import InferenceEngine, InferenceSpec, PauseMode
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.infer.loop import GenerationLoop
from areal_torch.profile import profile_variables
from areal_torch.testing.serving import FolderWeights, ask, until_generated

ROOM = 4096
LONG = {"max_new_tokens": 3500, "ignore_eos": True}
"""Seconds of work: no test waits for its end, and none can be overtaken by it."""


async def frozen(engine):
    """Return whether the number of tokens stands still while the event loop turns many times."""
    before = (await engine.status()).tokens_generated
    for _ in range(200):
        await asyncio.sleep(0)
    return (await engine.status()).tokens_generated == before


def test_it_is_an_inference_engine():
    """The class has every member of the contract."""
    assert isinstance(ReferenceInferenceEngine(), InferenceEngine)


def test_a_kept_request_goes_on_after_resume_as_if_nothing_had_been(serve, model_folder):
    """pause(keep) freezes in place: nothing is computed, and the output is that of an undisturbed run."""

    async def run():
        async with serve(model_folder(max_position=ROOM)) as engine:
            undisturbed = await engine.generate(ask(5, 9, seed=1, max_new_tokens=300, ignore_eos=True))
            call = asyncio.ensure_future(engine.generate(ask(5, 9, seed=1, **LONG)))
            await until_generated(engine, 5)
            await engine.pause(PauseMode.KEEP)
            await engine.pause(PauseMode.KEEP)
            stands, paused, done = await frozen(engine), (await engine.status()).paused, call.done()
            await engine.resume()
            await engine.resume()
            await until_generated(engine, 300)
            await engine.pause(PauseMode.ABORT)
            return undisturbed, stands, paused, done, await call

    undisturbed, stands, paused, done, generation = asyncio.run(run())
    assert (stands, paused, done) == (True, True, False)
    assert generation.output_ids[:300] == undisturbed.output_ids
    assert generation.logprobs[:300] == undisturbed.logprobs


def test_an_aborted_request_returns_what_it_has_and_can_be_continued(serve, model_folder):
    """pause(abort) returns partial outputs; continuing them gives the whole of an undisturbed run."""

    async def run():
        async with serve(model_folder(max_position=ROOM), max_concurrent=2) as engine:
            whole = await engine.generate(ask(5, 9, seed=1, max_new_tokens=300, ignore_eos=True))
            calls = [asyncio.ensure_future(engine.generate(ask(5, 9, seed=1, **LONG))) for _ in range(3)]
            await until_generated(engine, 5)
            await engine.pause(PauseMode.ABORT)
            parts = await asyncio.gather(*calls)
            waiting = asyncio.ensure_future(engine.generate(ask(5, 9, seed=1, **LONG)))
            stands, done = await frozen(engine), waiting.done()
            await engine.resume()
            await until_generated(engine, 5)
            waiting.cancel()
            prior = parts[0].output_ids[:200]
            options = {**LONG, "max_new_tokens": 300 - len(prior)}
            rest = await engine.generate(ask(5, 9, *prior, num_prior=len(prior), seed=1, **options))
            return whole, parts, stands, done, prior, rest

    whole, parts, stands, done, prior, rest = asyncio.run(run())
    assert {part.stop_reason for part in parts} == {StopReason.ABORTED}
    assert [len(part.output_ids) > 0 for part in parts] == [True, True, False]
    assert (stands, done) == (True, False)
    assert prior + rest.output_ids == whole.output_ids


def test_cancelling_a_call_frees_its_row(serve, model_folder):
    """With one row, the next request is served only if the cancelled one left."""

    async def run():
        async with serve(model_folder(max_position=ROOM), max_concurrent=1) as engine:
            stuck = asyncio.ensure_future(engine.generate(ask(5, 9, **LONG)))
            queued = asyncio.ensure_future(engine.generate(ask(6, 9, **LONG)))
            await until_generated(engine, 5)
            stuck.cancel()
            queued.cancel()
            generation = await engine.generate(ask(5, 9, max_new_tokens=3, ignore_eos=True))
            status = await engine.status()
            return generation, status, stuck.cancelled() and queued.cancelled()

    generation, status, cancelled = asyncio.run(run())
    assert len(generation.output_ids) == 3
    assert (status.num_running, status.num_waiting, cancelled) == (0, 0, True)
    assert status.tokens_generated < 3500


def test_close_fails_everybody_who_waits_and_ends_the_threads(serve, model_folder):
    """Running, queued and paused callers get GenerationFailed; close twice is fine; later calls are refused."""

    async def run():
        engine = ReferenceInferenceEngine()
        await engine.start(InferenceSpec(model_path=str(model_folder(max_position=ROOM)), max_concurrent=2))
        calls = [asyncio.ensure_future(engine.generate(ask(5, n, **LONG))) for n in range(5)]
        await until_generated(engine, 5)
        await engine.pause(PauseMode.KEEP)
        calls.append(asyncio.ensure_future(engine.generate(ask(5, 9, **LONG))))
        await asyncio.sleep(0)
        await engine.close()
        await engine.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(GenerationFailed, match="closed"):
            await engine.generate(ask(5))
        return outcomes

    before = {thread.name for thread in threading.enumerate()}
    outcomes = asyncio.run(run())
    assert [type(outcome) for outcome in outcomes] == [GenerationFailed] * 6
    left = {thread.name for thread in threading.enumerate()} - before
    assert not {name for name in left if name == "areal-generation"}


def test_an_engine_that_was_not_started_says_so():
    """Calls before start are refused, and close is still fine."""

    async def run():
        engine = ReferenceInferenceEngine()
        with pytest.raises(GenerationFailed, match="not started"):
            await engine.generate(ask(5))
        await engine.close()

    asyncio.run(run())


def test_a_step_that_raises_fails_its_requests_and_the_engine_serves_on(serve, monkeypatch):
    """An error inside a step reaches every caller as GenerationFailed with its cause; later requests work."""
    step, broken = GenerationLoop.draw, []

    def draw(self, work):
        if broken:
            raise MemoryError("out of memory")
        return step(self, work)

    monkeypatch.setattr(GenerationLoop, "draw", draw)

    async def run():
        async with serve() as engine:
            broken.append(True)
            failed = await asyncio.gather(*(engine.generate(ask(5, n)) for n in range(3)), return_exceptions=True)
            broken.clear()
            return failed, await engine.generate(ask(5, max_new_tokens=2, ignore_eos=True))

    failed, later = asyncio.run(run())
    assert all("MemoryError" in str(error) and error.retryable for error in failed)
    assert len(later.output_ids) == 2


def test_status_counts_tokens_and_time(serve):
    """tokens_generated counts outputs, busy_s grows, version is 0, and the timings of a generation add up."""

    async def run():
        async with serve(max_concurrent=4) as engine:
            outputs = await asyncio.gather(*(engine.generate(ask(5, n, max_new_tokens=9)) for n in range(9)))
            return outputs, await engine.status()

    outputs, status = asyncio.run(run())
    assert status.tokens_generated == sum(len(g.output_ids) for g in outputs)
    assert status.version == 0
    assert status.busy_s > 0
    assert all(0 <= g.timings.queued_s <= g.timings.first_token_s <= g.timings.total_s for g in outputs)


def test_a_small_cache_makes_requests_wait_instead_of_growing(serve):
    """`cache_gib` bounds the slab: all requests are served, and the slab stays under the bound."""
    bound = 400_000

    async def run():
        async with serve(config={"cache_gib": bound / 2**30}) as engine:
            outputs = await asyncio.gather(*(engine.generate(ask(5, seed=n, max_new_tokens=60)) for n in range(24)))
            return outputs, await engine.status()

    outputs, status = asyncio.run(run())
    assert len(outputs) == 24
    assert status.metrics["cache_bytes"] <= bound
    assert status.metrics["rows_allocated"] == 8


@pytest.mark.slow
def test_memory_stays_flat_over_many_requests(serve):
    """After the first load, no more tensors are held, however many requests come."""

    def tensors():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    async def run():
        async with serve(max_concurrent=8) as engine:
            counts = []
            for _ in range(3):
                for _ in range(10):
                    await asyncio.gather(*(engine.generate(ask(5, n, max_new_tokens=10)) for n in range(12)))
                await engine.pause(PauseMode.KEEP)  # results arrive before the last step has let go of its tensors
                counts.append((tensors(), (await engine.status()).metrics["cache_bytes"]))
                await engine.resume()
            return counts

    first, second, third = asyncio.run(run())
    assert first == second == third


def test_a_traced_generator_writes_what_one_version_cost(serve, model_folder, tmp_path, monkeypatch):
    """The tokens of the step asked for, not of the one before; the file is there when the next version serves."""
    for name, value in profile_variables({"steps": [2]}, 3, tmp_path, "rollout").items():
        monkeypatch.setenv(name, value)
    first, second = model_folder(), model_folder(seed=1)

    async def take(engine, folder, version):
        await engine.receive_weights(FolderWeights.of(folder).offer(version), version)
        await engine.commit_weights(version)

    async def run():
        async with serve(first, replica=1) as engine:
            await engine.generate(ask(5, 9, max_new_tokens=4, ignore_eos=True))
            await take(engine, second, 1)
            before = list(tmp_path.rglob("*.gz"))
            await engine.generate(ask(5, 9, max_new_tokens=6, ignore_eos=True))
            await take(engine, first, 2)
            return before, list(tmp_path.rglob("*.gz"))

    before, after = asyncio.run(run())
    assert (before, after) == ([], [tmp_path / "profile/step-2/rollout.1-rank0.json.gz"])
    with gzip.open(after[0], "rt") as file:
        events = json.load(file)["traceEvents"]
    tokens = [event for event in events if event.get("name") == "areal: token"]
    assert len([event for event in tokens if event.get("cat") == "user_annotation"]) == 6
