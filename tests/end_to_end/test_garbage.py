"""What a run keeps out of collections of garbage, and whose it leaves alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.one_process import FILE, Silent, settle_here

from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.loop.run import Run
from areal_core.plugins.registry import default_registry


class Counting(Silent):
    """Remembers at each step how many objects are kept out of collections."""

    def __init__(self) -> None:
        self.frozen: list[int] = []

    def step(self, record: Mapping[str, Any]) -> None:
        self.frozen.append(gc.get_freeze_count())


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """Yield what the steps of a run will be counted by; what was frozen before is afterwards."""
    settle_here(monkeypatch)
    yield Counting()
    gc.freeze()


def run(folder: Path, model: Path, view: Counting) -> None:
    """Make two steps."""
    registry = default_registry()
    config = load_config(FILE, (f"model.path={model}", f"out={folder}", "steps=2"))
    asyncio.run(Run(make_plan(config, registry, {}), registry, view=view, stop=asyncio.Event()).execute(resume=False))


def test_what_start_up_made_is_frozen_while_it_trains(tmp_path: Path, model: Path, counting: Counting) -> None:
    gc.unfreeze()
    run(tmp_path, model, counting)
    assert counting.frozen and min(counting.frozen) > 0
    assert gc.get_freeze_count() == 0


def test_what_a_host_froze_stays_frozen(tmp_path: Path, model: Path, counting: Counting) -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    run(tmp_path, model, counting)
    assert min(counting.frozen) > 0 and max(counting.frozen) <= before, "a run's own could never be collected"
    assert gc.get_freeze_count() > 0
