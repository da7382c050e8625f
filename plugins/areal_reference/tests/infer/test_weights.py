"""A weight update is all or nothing, and every token says truly which weights computed it."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
import torch
from attrs import evolve

from areal_core.contract.errors import CoverageError, GenerationFailed, VersionRegressed, WeightSyncError
from areal_core.contract.inference import PauseMode
from areal_core.weights.tensors import fingerprint, manifest_of
from areal_torch.testing.serving import FolderWeights, ask, full_logits, until_generated

ROOM = 4096
LONG = {"max_new_tokens": 3500, "ignore_eos": True, "temperature": 0.0}


@pytest.mark.parametrize("kept", ["keep", "recompute"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_version_spans_name_the_weights_that_computed_each_token(kept, deterministic, serve, model_folder):
    """Version k always emits token 10 + k; under updates in flight every stamped version matches its token."""
    folder = model_folder(tied=False, max_position=ROOM)
    start = FolderWeights.of(folder)

    async def update(engine, version):
        await engine.receive_weights(start.tell(10 + version).offer(version), version)
        await engine.commit_weights(version)

    async def run():
        config = {"kv_on_update": kept, "deterministic": deterministic}
        async with serve(folder, config=config, max_concurrent=8) as engine:
            await update(engine, 1)
            calls = [asyncio.ensure_future(engine.generate(ask(5, n, **LONG))) for n in range(12)]
            for version in range(2, 7):
                await until_generated(engine, 40)
                await update(engine, version)
            await until_generated(engine, 40)
            await engine.pause(PauseMode.ABORT)
            return [generation for generation in await asyncio.gather(*calls) if generation.output_ids]

    generations = asyncio.run(run())
    for generation in generations:
        spans = generation.version_spans
        ends = [0, *(span.stop for span in spans)]
        assert ends == [*(span.start for span in spans), len(generation.output_ids)]
        assert [span.version for span in spans] == sorted({span.version for span in spans})
        for span in spans:
            assert set(generation.output_ids[span.start : span.stop]) == {10 + span.version}
    assert [len(generation.version_spans) for generation in generations] == [6] * 8


def test_the_new_weights_serve_exactly_what_a_fresh_model_would(serve, model_folder):
    """After a commit, log-probs are those of transformers loaded with the new weights, tied head included."""
    old, new = model_folder(), model_folder(seed=5)

    async def run():
        async with serve(old) as engine:
            receipt = await engine.receive_weights(FolderWeights.of(new).offer(3), 3)
            before = await engine.generate(ask(5, 9, temperature=0.0, max_new_tokens=8, ignore_eos=True))
            await engine.commit_weights(3)
            await engine.commit_weights(3)
            after = await engine.generate(ask(5, 9, temperature=0.0, max_new_tokens=8, ignore_eos=True))
            return receipt, before, after, (await engine.status()).version

    receipt, before, after, version = asyncio.run(run())
    for folder, generation in ((old, before), (new, after)):
        logits = full_logits(folder, [5, 9, *generation.output_ids])[1:-1]
        assert list(generation.output_ids) == logits.argmax(-1).tolist()
    assert receipt.fingerprints == {n: fingerprint(t) for n, t in FolderWeights.of(new).tensors.items()}
    assert (receipt.version, version) == (3, 3)
    assert [span.version for span in (*before.version_spans, *after.version_spans)] == [0, 3]


def test_the_fingerprint_of_a_cast_tensor_is_of_the_bytes_that_arrived(serve, model_folder):
    """float32 sent to a bfloat16 engine: the receipt proves the float32 bytes, the engine serves their cast."""
    new = model_folder(seed=5)

    async def run():
        async with serve(dtype="bfloat16") as engine:
            receipt = await engine.receive_weights(FolderWeights.of(new).offer(1), 1)
            await engine.commit_weights(1)
            served = dict(engine.running.loaded.model.named_parameters())
            return receipt, served

    receipt, served = asyncio.run(run())
    sent = FolderWeights.of(new).tensors
    assert receipt.fingerprints == {name: fingerprint(tensor) for name, tensor in sent.items()}
    assert all(torch.equal(served[name], tensor.bfloat16()) for name, tensor in sent.items())


def _without(weights, version):
    offer = weights.offer(version)
    return evolve(
        offer, manifest=manifest_of(offer.tensors[1:], version=version, tied=weights.tied), tensors=offer.tensors[1:]
    )


def _torn(weights, version):
    offer = weights.offer(version)
    return evolve(offer, tensors=offer.tensors[:-1])


def _extra(weights, version):
    return FolderWeights({**weights.tensors, "model.extra.weight": torch.zeros(2)}, weights.tied).offer(version)


def _renamed(weights, version):
    tensors = {name.replace("model.norm", "model.final_norm"): t for name, t in weights.tensors.items()}
    return FolderWeights(tensors, weights.tied).offer(version)


def _misshapen(weights, version):
    return FolderWeights({**weights.tensors, "model.norm.weight": torch.ones(32)}, weights.tied).offer(version)


def _integer(weights, version):
    return FolderWeights(
        {**weights.tensors, "model.norm.weight": torch.ones(64, dtype=torch.int32)}, weights.tied
    ).offer(version)


def _other_than_announced(weights, version):
    offer = weights.offer(version)
    return evolve(offer, tensors=[(name, t.double()) for name, t in offer.tensors])


def _twice(weights, version):
    offer = weights.offer(version)
    return evolve(offer, tensors=[*offer.tensors, offer.tensors[0]])


def _untied(weights, version):
    return FolderWeights({**weights.tensors, "lm_head.weight": torch.zeros(64, 64)}, {}).offer(version)


def _tied_forgotten(weights, version):
    return FolderWeights(weights.tensors, {}).offer(version)


@pytest.mark.parametrize(
    "spoil",
    [_without, _torn, _extra, _renamed, _misshapen, _integer, _other_than_announced, _twice, _untied, _tied_forgotten],
)
def test_a_wrong_update_is_refused_and_the_old_weights_still_serve(spoil, serve, model_folder):
    """Missing, torn, extra, renamed, misshapen, untied: CoverageError, nothing to commit, outputs unchanged."""
    weights = FolderWeights.of(model_folder(seed=5))
    request = ask(5, 9, temperature=0.0, max_new_tokens=8, ignore_eos=True)

    async def run():
        async with serve() as engine:
            before = await engine.generate(request)
            source = spoil(weights, 1)
            with pytest.raises(CoverageError):
                await engine.receive_weights(source, 1)
            with pytest.raises(WeightSyncError, match="nothing is staged"):
                await engine.commit_weights(1)
            after = await engine.generate(request)
            await engine.receive_weights(weights.offer(1), 1)
            await engine.commit_weights(1)
            return before, after, source, await engine.generate(request)

    before, after, source, new = asyncio.run(run())
    assert (before.output_ids, before.logprobs) == (after.output_ids, after.logprobs)
    assert new.output_ids != before.output_ids
    assert source.closed


@pytest.mark.parametrize("version", [0, 2, 3])
def test_weights_not_newer_than_those_serving_are_refused(version, serve, model_folder):
    """Versions only go up."""

    async def run():
        async with serve() as engine:
            await engine.receive_weights(FolderWeights.of(model_folder()).offer(3), 3)
            await engine.commit_weights(3)
            with pytest.raises(VersionRegressed, match=f"version {version} .*offered"):
                await engine.receive_weights(FolderWeights.of(model_folder()).offer(version), version)
            return await engine.status()

    assert asyncio.run(run()).version == 3


def test_a_source_of_another_version_is_refused(serve, model_folder):
    """What the source announces must be what the controller asked for."""

    async def run():
        async with serve() as engine:
            with pytest.raises(WeightSyncError, match="holds version 4"):
                await engine.receive_weights(FolderWeights.of(model_folder()).offer(4), 5)

    asyncio.run(run())


def test_aborted_weights_are_dropped_also_while_they_arrive(serve, model_folder):
    """abort_weights ends a transfer under way and drops a finished one; it may be called at any time."""
    weights = FolderWeights.of(model_folder(seed=5))

    async def run():
        async with serve() as engine:
            await engine.abort_weights()
            await engine.receive_weights(weights.offer(1), 1)
            await engine.abort_weights()
            with pytest.raises(WeightSyncError, match="nothing is staged"):
                await engine.commit_weights(1)
            offer = weights.offer(2)
            offer.before_bucket = lambda number: engine.running.stage.cancel() if number == 3 else None
            with pytest.raises(WeightSyncError, match="aborted"):
                await engine.receive_weights(offer, 2)
            await engine.receive_weights(weights.offer(2), 2)
            await engine.commit_weights(2)
            return (await engine.status()).version

    assert asyncio.run(run()) == 2


def stalling(folder):
    """Return an offer that stands still before its second bucket, what tells of that, and what lets it go on."""
    begun, going_on = threading.Event(), threading.Event()
    offer = FolderWeights.of(folder).offer(1)
    offer.before_bucket = lambda number: number != 1 or begun.set() or going_on.wait(60)
    return offer, begun, going_on


def test_a_version_that_is_aborted_while_it_arrives_ends_there(serve, model_folder):
    """With the bucket that it is at: abort_weights does not wait for all that a slow trainer still sends."""

    async def run():
        offer, begun, aborting = stalling(model_folder(seed=5))
        async with serve() as engine:
            receiving = asyncio.ensure_future(engine.receive_weights(offer, 1))
            await asyncio.to_thread(begun.wait, 60)
            abort = asyncio.ensure_future(engine.abort_weights())
            await asyncio.sleep(0)
            aborting.set()
            with pytest.raises(WeightSyncError, match="aborted"):
                await receiving
            await abort
            return (await engine.status()).version

    assert asyncio.run(run()) == 0


def test_who_aborts_a_version_while_the_engine_closes_is_told_that_it_is_closed(serve, model_folder):
    """Not that the call was cancelled, which nobody did: its task would end as if its owner had given it up."""

    async def run():
        offer, begun, going_on = stalling(model_folder(seed=5))
        async with serve() as engine:
            receiving = asyncio.ensure_future(engine.receive_weights(offer, 1))
            await asyncio.to_thread(begun.wait, 60)
            abort = asyncio.ensure_future(engine.abort_weights())
            await asyncio.sleep(0)
            await engine.close()
            going_on.set()
            with pytest.raises(WeightSyncError, match="aborted"):
                await receiving
            with pytest.raises(GenerationFailed, match="closed"):
                await abort

    asyncio.run(run())


def test_generation_goes_on_while_weights_arrive(serve, model_folder):
    """The transfer blocks until tokens were generated after it began: it would never end otherwise."""

    async def run():
        async with serve(model_folder(max_position=ROOM)) as engine:
            weights, more = FolderWeights.of(model_folder(seed=5, max_position=ROOM)).offer(1), threading.Event()
            weights.before_bucket = lambda _number: more.wait(60)
            call = asyncio.ensure_future(engine.generate(ask(5, **LONG)))
            receiving = asyncio.ensure_future(engine.receive_weights(weights, 1))
            await until_generated(engine, 60)
            more.set()
            await receiving
            await engine.pause(PauseMode.ABORT)
            return (await call).version_spans

    assert [span.version for span in asyncio.run(run())] == [0]


@pytest.mark.parametrize("kept", ["keep", "recompute"])
def test_the_cache_of_running_requests_is_kept_or_recomputed_as_configured(kept, serve, model_folder):
    """After an update, `recompute` continues as the new weights would from the tokens so far; `keep` does not."""
    new = model_folder(seed=5, max_position=ROOM)

    async def run():
        async with serve(model_folder(max_position=ROOM), config={"kv_on_update": kept}) as engine:
            call = asyncio.ensure_future(engine.generate(ask(5, 9, **LONG)))
            await until_generated(engine, 40)
            await engine.pause(PauseMode.KEEP)
            await engine.receive_weights(FolderWeights.of(new).offer(1), 1)
            await engine.commit_weights(1)
            await engine.resume()
            await until_generated(engine, 60)
            await engine.pause(PauseMode.ABORT)
            return await call

    generation = asyncio.run(run())
    cut = generation.version_spans[1].start
    logits = full_logits(new, [5, 9, *generation.output_ids])[1:-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(generation.output_ids)[:, None])[:, 0]
    gap = (torch.tensor(generation.logprobs) - expected)[cut:].abs().max()
    assert (gap < 1e-4) == (kept == "recompute")


def test_a_shared_prompt_is_computed_anew_after_an_update(serve, model_folder):
    """A running request's cache of an older version is never shared with a new request."""
    new = model_folder(seed=5, max_position=ROOM)

    async def run():
        async with serve(model_folder(max_position=ROOM)) as engine:
            call = asyncio.ensure_future(engine.generate(ask(5, 9, 7, 8, **LONG)))
            await until_generated(engine, 40)
            await engine.receive_weights(FolderWeights.of(new).offer(1), 1)
            await engine.commit_weights(1)
            fresh = await engine.generate(ask(5, 9, 7, 8, temperature=0.0, max_new_tokens=9, ignore_eos=True))
            call.cancel()
            return fresh

    generation = asyncio.run(run())
    logits = full_logits(new, [5, 9, 7, 8, *generation.output_ids])[3:-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(generation.output_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(generation.logprobs), expected, atol=1e-4, rtol=0)


def test_weights_that_are_not_finite_fail_requests_and_leave_no_trace(serve, model_folder):
    """NaN weights give GenerationFailed naming the version; a row they filled serves a shorter request well."""
    sound = FolderWeights.of(model_folder(seed=5))
    broken = FolderWeights({name: t * float("nan") for name, t in sound.tensors.items()}, sound.tied)
    short, long = (ask(*ids, temperature=0.0, max_new_tokens=4, ignore_eos=True) for ids in ((5, 9), (7,) * 20))

    async def run():
        async with serve() as engine:
            for version, weights in ((1, broken), (2, sound)):
                await engine.receive_weights(weights.offer(version), version)
                await engine.commit_weights(version)
                if version == 1:
                    with pytest.raises(GenerationFailed, match=r"version 1 .*finite"):
                        await engine.generate(long)
            return await asyncio.gather(engine.generate(short), engine.generate(long))

    generation, _ = asyncio.run(run())
    logits = full_logits(model_folder(seed=5), [5, 9, *generation.output_ids])[1:-1]
    assert list(generation.output_ids) == logits.argmax(-1).tolist()


def test_a_request_that_is_not_finite_fails_alone(serve, model_folder):
    """One prompt holds a token whose embedding is NaN; whoever takes over its place in the cache loses nothing."""
    sound = FolderWeights.of(model_folder(seed=5, tied=False))
    name = "model.embed_tokens.weight"
    embeddings = sound.tensors[name].clone()
    embeddings[40] = float("nan")
    weights = FolderWeights({**sound.tensors, name: embeddings}, sound.tied)
    prompts = [(5, 40, 9), (7, 8, 9, 10), (11,), (12, 13, 14, 15, 16, 17)]
    first, *others = [ask(*ids, temperature=0.0, max_new_tokens=30, ignore_eos=True) for ids in prompts]

    async def run():
        async with serve(model_folder(tied=False)) as engine:
            await engine.receive_weights(weights.offer(1), 1)
            await engine.commit_weights(1)
            return await asyncio.gather(*map(engine.generate, (first, *others)), return_exceptions=True)

    failed, *results = asyncio.run(run())
    assert isinstance(failed, GenerationFailed)
    for request, result in zip(others, results, strict=True):
        ids = [*request.input_ids, *result.output_ids]
        assert 40 not in ids, "the test's prompts lead to the token that is not finite"
        logits = full_logits(model_folder(seed=5, tied=False), ids)[len(request.input_ids) - 1 : -1]
        assert list(result.output_ids) == logits.argmax(-1).tolist()


def test_an_engine_that_sleeps_holds_no_second_copy_of_its_weights(serve, model_folder):
    """The buffers that updates arrive in, from the first update on."""
    weights = FolderWeights.of(model_folder(seed=5))

    async def run():
        async with serve() as engine:
            await engine.receive_weights(weights.offer(1), 1)
            await engine.commit_weights(1)
            await engine.pause(PauseMode.ABORT)
            await engine.sleep()
            return dict(engine.running.stage.spare)

    assert asyncio.run(run()) == {}


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_updates(serve, model_folder):
    """Two buffers per parameter, whatever the number of updates."""
    weights = FolderWeights.of(model_folder(layers=1, hidden=16, heads=2, kv_heads=1))

    async def run():
        async with serve(model_folder(layers=1, hidden=16, heads=2, kv_heads=1)) as engine:
            counts = []
            for version in range(1, 1001):
                offer = weights.offer(version)
                await engine.receive_weights(offer, version)
                await engine.commit_weights(version)
                if version % 400 == 100:
                    await engine.generate(ask(5, max_new_tokens=3))
                    await engine.pause(PauseMode.KEEP)  # the last step lets go of its tensors
                    await engine.resume()
                    del offer
                    gc.collect()
                    counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
            return counts

    first, *rest = asyncio.run(run())
    assert rest == [first] * len(rest)
