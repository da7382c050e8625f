"""Adapters that requests name, beyond what the conformance suite asks: equal bits in company, and new base weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import attrs
import torch

from areal_conformance.oracles.adapters import write_adapter
from areal_core.contract.inference import GenerationRequest, PauseMode
from areal_torch.testing.serving import FolderWeights, ask, until_generated


def asking(adapter: str, *ids: int, seed: int = 1, **sampling: object) -> GenerationRequest:
    return attrs.evolve(ask(*ids, seed=seed, **sampling), adapter=adapter)


def made(folder: Path, base: FolderWeights, seed: int) -> FolderWeights:
    """Write an adapter; return the weights it amounts to."""
    merged = write_adapter(folder, base.tensors, rank=2, alpha=6.0, targets=("q_proj", "down_proj"), seed=seed)
    return FolderWeights(merged, dict(base.tied))


def test_a_request_with_an_adapter_has_the_same_bits_alone_and_in_company(serve, model_folder, tmp_path):
    """In deterministic mode neither other adapters nor the policy beside it change one bit, or a prompt they share."""
    folder = model_folder()
    base = FolderWeights.of(folder)
    for number, name in enumerate("ab"):
        made(tmp_path / name, base, number)
    requests = [asking(name, 5, 9, 7, seed=n, max_new_tokens=12 + n) for n, name in enumerate(["a", "", "b", "a", "b"])]

    async def run():
        async with serve(folder, config={"deterministic": True}) as engine:
            for name in "ab":
                await engine.load_adapter(name, tmp_path / name, 0)
            alone = [await engine.generate(request) for request in requests]
            together = await asyncio.gather(*(engine.generate(request) for request in requests))
            return alone, together

    alone, together = asyncio.run(run())
    for one, other in zip(alone, together, strict=True):
        assert (one.output_ids, one.logprobs) == (other.output_ids, other.logprobs)
    assert len({one.logprobs[0] for one in alone[:3]}) == 3


def test_a_request_with_an_adapter_goes_on_after_sleep(serve, model_folder, tmp_path):
    """Its cache is made again under its adapter: the same as if the engine had not slept."""
    folder = model_folder()
    base = FolderWeights.of(folder)
    made(tmp_path / "a", base, 1)
    request = asking("a", 5, 9, 7, temperature=0.0, max_new_tokens=200, ignore_eos=True)

    async def run():
        async with serve(folder) as engine:
            await engine.load_adapter("a", tmp_path / "a", 0)
            whole = await engine.generate(request)
            task = asyncio.ensure_future(engine.generate(request))
            await until_generated(engine, 3)
            await engine.pause(PauseMode.KEEP)
            await engine.sleep()
            await engine.wake()
            await engine.receive_weights(base.offer(1), 1)
            await engine.commit_weights(1)
            await engine.resume()
            return whole, await task

    whole, slept = asyncio.run(run())
    assert slept.output_ids == whole.output_ids
    torch.testing.assert_close(torch.tensor(slept.logprobs), torch.tensor(whole.logprobs), atol=1e-4, rtol=1e-4)


def test_after_an_update_an_adapter_is_over_the_new_weights(serve, model_folder, tmp_path):
    """W is what the policy has become, B A stays: the same as the adapter merged into the new weights."""
    folder = model_folder()
    base = FolderWeights.of(folder)
    newer = FolderWeights({name: tensor * 1.25 for name, tensor in base.tensors.items()}, dict(base.tied))
    made(tmp_path / "a", base, 1)
    merged = made(tmp_path / "same", newer, 1)

    async def run():
        async with serve(folder) as engine:
            await engine.load_adapter("a", tmp_path / "a", 0)
            before = await engine.generate(asking("a", 5, 9, temperature=0.0, max_new_tokens=8))
            await engine.receive_weights(newer.offer(1), 1)
            await engine.commit_weights(1)
            after = await engine.generate(asking("a", 5, 9, temperature=0.0, max_new_tokens=8))
            await engine.receive_weights(merged.offer(2), 2)
            await engine.commit_weights(2)
            return before, after, await engine.generate(ask(5, 9, temperature=0.0, max_new_tokens=8))

    before, after, whole = asyncio.run(run())
    assert {span.version for span in after.version_spans} == {0}
    assert after.output_ids == whole.output_ids
    torch.testing.assert_close(torch.tensor(after.logprobs), torch.tensor(whole.logprobs), atol=1e-4, rtol=1e-4)
    assert before.logprobs != after.logprobs
