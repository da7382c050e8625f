"""Sleep, with real processes: what a server that gave its weights back is told to load again."""

from __future__ import annotations

import asyncio

import pytest

from areal_core.contract.errors import GenerationFailed
from areal_core.contract.inference import InferenceSpec, PauseMode
from areal_core.contract.train import LoraSpec
from areal_serving.sleeping import SleepingEngine

from .test_policy_adapter import LORA, adapter, updated
from .toy import ToyEngine

pytestmark = pytest.mark.usefixtures("nothing_left")


class Sleeper(SleepingEngine, ToyEngine):
    """The shared engine over a toy server, which only counts what it would give back."""

    can_sleep = True

    async def put_to_sleep(self, api) -> None:
        await api.post("/stamp", {"version": -1})

    async def wake_up(self, api) -> None:
        await api.post("/stamp", {"version": -2})


async def slept(model, lora: LoraSpec | None) -> list[str]:
    """Return what a server was told from sleep to a second wake; resume is refused then."""
    engine = Sleeper()
    await engine.start(InferenceSpec(model_path=str(model), lora=lora))
    try:
        if lora is not None:
            await updated(engine, adapter(model, 1), 1)
        await engine.pause(PauseMode.KEEP)
        await engine.sleep()
        await engine.wake()
        await engine.wake()
        story = await engine.story()
        with pytest.raises(GenerationFailed, match="no weights"):
            await engine.resume()
        return story[story.index("stamp -1") :]
    finally:
        await engine.close()


def test_a_policy_that_is_an_adapter_gets_its_model_back(model):
    """The next version brings the adapter alone; before it nothing is computed all the same."""
    assert asyncio.run(slept(model, LORA)) == ["stamp -1", "stamp -2", "load 1"]


def test_whole_weights_are_not_loaded_twice(model):
    """The next version brings all of them."""
    assert asyncio.run(slept(model, None)) == ["stamp -1", "stamp -2"]
