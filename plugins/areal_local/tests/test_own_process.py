"""The controller's process while a run is on: one thread for torch, few collections; afterwards as it was."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from areal_core.cli.train import PlainView
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.errors import TrainError
from areal_core.loop.run import Run
from areal_core.plugins.registry import default_registry
from areal_local.own_process import as_controller
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model

Settings = tuple[int, tuple[int, int, int], float]


def settings() -> Settings:
    """Return threads of torch, thresholds of the collector, and seconds of a thread's turn."""
    return torch.get_num_threads(), gc.get_threshold(), sys.getswitchinterval()


@pytest.fixture(autouse=True)
def own() -> Iterator[Settings]:
    """A process with settings of its user's."""
    before = settings()
    torch.set_num_threads(2)
    gc.set_threshold(701, 11, 1_000)
    yield settings()
    gc.set_threshold(*before[1])
    torch.set_num_threads(before[0])


def test_settings_last_as_long_as_the_block(own: Settings) -> None:
    """Whatever ends it; a threshold above ours stays."""
    with pytest.raises(TrainError), as_controller():
        threads, thresholds, turn_s = settings()
        raise TrainError("it ended")

    assert threads == 1 and turn_s < own[2]
    assert thresholds[0] > 10 * 701 and thresholds[1] > 11 and thresholds[2] == 1_000
    assert settings() == own


def test_a_collector_that_is_off_stays_off() -> None:
    """A threshold of 0 is how it is turned off."""
    gc.set_threshold(0)
    with as_controller():
        assert gc.get_threshold()[0] == 0


def test_a_run_has_them_and_its_caller_gets_them_back(own: Settings, tmp_path: Path) -> None:
    """A run that fails gives them back, too."""
    seen: list[Settings] = []

    class Failing(Run):
        async def _start_and_train(self, *_: Any) -> int | None:  # Any: as a run's
            seen.append(settings())
            raise TrainError("it failed")

        def _end(self, *_: Any) -> dict[str, Any]:  # Any: as a run's
            return {}  # a report takes seconds

    model = make_spell_model(tmp_path / "model", seed=1)
    words = [f"model.path={model}", f"out={tmp_path / 'run'}", "actor.backend=reference:d1"]
    registry = default_registry()
    plan = make_plan(load_config(preset_path("spell"), words), registry, {})

    with pytest.raises(TrainError, match="it failed"):
        asyncio.run(Failing(plan, registry, view=PlainView(1, Console(quiet=True)), stop=asyncio.Event()).execute())

    assert seen[0][0] == 1 and seen[0] != own == settings()
