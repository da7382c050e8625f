"""The policy as an adapter, with real processes: what a server is told, what survives a crash, an abort, a commit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from attrs import evolve
from safetensors.torch import save_file

from areal_core.contract.data import StopReason
from areal_core.contract.errors import CapabilityError, CoverageError, ModelError
from areal_core.contract.inference import PauseMode
from areal_core.contract.train import LoraSpec
from areal_serving.adapters import ServedAdapter
from areal_serving.model import ServedModel
from areal_serving.policy_adapter import AdapterStaging, adapter_shapes
from areal_torch.testing.serving import FolderWeights, ask

from .toy import ask_many, kill_server, restarts, started

LORA = LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "down_proj"))
pytestmark = pytest.mark.usefixtures("nothing_left")


def adapter(model: Path, seed: int) -> FolderWeights:
    """Return an adapter of the model, as a trainer sends it."""
    generator = torch.Generator().manual_seed(seed)
    shapes = adapter_shapes(ServedModel.of(str(model)).shapes, LORA)
    return FolderWeights({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}, {})


@pytest.mark.parametrize("alpha", [4.0, 2.5, 0.25])
def test_the_folder_says_the_scale_it_is_trained_at(model, tmp_path, alpha):
    """To the bit, where it is no whole number too."""
    AdapterStaging(ServedModel.of(str(model)), tmp_path, evolve(LORA, alpha=alpha)).fill(tmp_path)

    told = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"]) == (2, alpha)


async def served(engine) -> set[str]:
    """Return the names the server has adapters under."""
    told = [line for line in await engine.story() if "adapter" in line]
    return {f"{told.count('load_adapter')} loaded, {told.count('unload_adapter')} dropped"}


async def made(engine, count: int = 3):
    """Return what a request of this moment gets."""
    call = asyncio.ensure_future(engine.generate(ask(5, 7, max_new_tokens=count)))
    await engine.until_in_server(1)
    await engine.step(count)
    return await call


async def updated(engine, weights: FolderWeights, version: int) -> None:
    await engine.receive_weights(weights.offer(version), version)
    await engine.commit_weights(version)


def test_an_adapter_serves_from_its_commit_on(model):
    """Base, first and second adapter give three outputs, each stamped; nobody has to pause."""

    async def run():
        async with started(model, lora=LORA) as engine:
            found = [await made(engine)]
            for version in (1, 2):
                await engine.receive_weights(adapter(model, version).offer(version), version)
                found.append(await made(engine))
                await engine.commit_weights(version)
                found.append(await made(engine))
            return found, await served(engine), (await engine.status()).paused

    found, told, paused = asyncio.run(run())

    assert [{span.version for span in one.version_spans} for one in found] == [{0}, {0}, {1}, {1}, {2}]
    outputs = [one.output_ids for one in found]
    assert outputs[0] == outputs[1] and outputs[2] == outputs[3]
    assert len({outputs[0], outputs[2], outputs[4]}) == 3
    assert told == {"4 loaded, 1 dropped"}  # each at its receipt, and at its commit
    assert not paused


def test_a_commit_ends_what_runs_and_keeps_the_pause(model):
    """A request keeps the adapter it was sent with, so it comes back; a frozen engine stays frozen."""

    async def run():
        async with started(model, lora=LORA) as engine:
            calls = ask_many(engine, [ask(5, n, max_new_tokens=9) for n in (2, 3)])
            await engine.until_in_server(2)
            await engine.step(2)
            await engine.pause(PauseMode.KEEP)
            await updated(engine, adapter(model, 1), 1)
            ended = await asyncio.gather(*calls)
            paused = (await engine.status()).paused
            await engine.resume()
            return ended, paused, await made(engine)

    ended, paused, after = asyncio.run(run())

    assert [(one.stop_reason, len(one.output_ids)) for one in ended] == [(StopReason.ABORTED, 2)] * 2
    assert {span.version for one in ended for span in one.version_spans} == {0}
    assert paused
    assert {span.version for span in after.version_spans} == {1}


def test_the_next_server_has_the_adapter(model):
    """A server that is killed comes back with the adapter, under its version."""

    async def run():
        async with started(model, lora=LORA) as engine:
            await updated(engine, adapter(model, 3), 3)
            before = await made(engine)
            await kill_server(engine)
            await engine.until(lambda: restarts(engine) == 1)
            return before, await made(engine), await engine.story()

    before, after, story = asyncio.run(run())

    assert before.output_ids == after.output_ids
    assert before.version_spans == after.version_spans
    assert story[:4] == ["pause keep", "load_adapter", "stamp 3", "resume"]


def test_an_aborted_version_may_come_again_with_other_content(model):
    """It is another adapter in the server, and what was dropped is unloaded."""

    async def run():
        async with started(model, lora=LORA) as engine:
            await engine.receive_weights(adapter(model, 1).offer(1), 1)
            await engine.abort_weights()
            await updated(engine, adapter(model, 2), 1)
            second = await made(engine)
            await updated(engine, adapter(model, 1), 2)
            return second.output_ids, (await made(engine)).output_ids, await served(engine)

    second, first, told = asyncio.run(run())

    assert second != first
    assert told == {"5 loaded, 2 dropped"}


def test_tensors_that_are_no_adapter_of_the_model_are_refused(model, weights):
    """Whole weights, another rank, a layer left out."""

    async def run(unfit: FolderWeights):
        async with started(model, lora=LORA) as engine:
            await engine.receive_weights(unfit.offer(1), 1)

    good = adapter(model, 1).tensors
    wide = {name: tensor.repeat(2, 1) if "lora_A" in name else tensor for name, tensor in good.items()}
    for unfit in (weights(1), FolderWeights(wide, {}), FolderWeights(dict(list(good.items())[1:]), {})):
        with pytest.raises(CoverageError):
            asyncio.run(run(unfit))


def test_version_0_is_the_adapter_of_its_folder(model, tmp_path):
    """It serves from the first token, and in the next server; one of other layers is refused at start."""
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    save_file(adapter(model, 4).tensors, folder / "adapter_model.safetensors")
    begun = evolve(LORA, path=str(folder))

    async def run(lora: LoraSpec):
        async with started(model, lora=lora) as engine:
            found = [await made(engine)]
            await kill_server(engine)
            await engine.until(lambda: restarts(engine) == 1)
            found.append(await made(engine))
            await updated(engine, adapter(model, 4), 1)
            return [*found, await made(engine)]

    first, again, sent = asyncio.run(run(begun))

    assert first.output_ids == again.output_ids == sent.output_ids
    assert [one.version_spans[0].version for one in (first, again, sent)] == [0, 0, 1]
    for wrong in (evolve(begun, targets=("q_proj",)), evolve(begun, path=str(tmp_path / "nowhere"))):
        with pytest.raises((CoverageError, ModelError)):
            asyncio.run(run(wrong))


def test_an_adapter_the_server_refuses_is_told_before_the_commit(model):
    """What serves goes on."""

    async def run():
        async with started(model, lora=LORA) as engine:
            await engine.misbehave("load_adapter", "422")
            with pytest.raises(CapabilityError, match="toy cannot use"):
                await engine.receive_weights(adapter(model, 1).offer(1), 1)
            return await made(engine)

    assert {span.version for span in asyncio.run(run()).version_spans} == {0}


def test_names_in_the_server_are_a_version_of_a_name_unless_given():
    """Adapters that requests name never meet the policy's."""
    assert ServedAdapter(name="a", version=3, path=Path()).served == "a@3"
    assert ServedAdapter(name="policy", version=0, path=Path(), served="v3-x").served == "v3-x"
