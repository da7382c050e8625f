"""A pair in processes of its own needs a device for each of them, and says so where there are fewer."""

from __future__ import annotations

import asyncio

import pytest

from areal_conformance.benches import pair
from areal_conformance.outcome import Inconclusive
from areal_conformance.target import Locator, locate


def test_a_machine_with_fewer_devices_than_processes_tells_nothing_about_the_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody fails a check that could not be made."""
    monkeypatch.setattr(pair, "count_visible", lambda registry, environ: {"cpu": 2})
    bench = pair.PairBench(locate(Locator(role="pair", name="reference+reference")))

    async def story() -> None:
        async with bench.pair(processes=True, replicas=2):
            pass

    try:
        with pytest.raises(Inconclusive, match="3 workers own a cpu device each, and 2 are here"):
            asyncio.run(story())
    finally:
        bench.close()
