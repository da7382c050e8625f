"""What every test of this repository runs under, and in which order."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A test states what is right, never how long it may take.
settings.register_profile("areal", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("AREAL_TEST_PROFILE", "areal"))

SLOW_S = 900.0
"""How long a slow test may take that says nothing else: the machine may be busy."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m "slow ..."`, leave out files without a slow test: importing all others takes longer than most tests."""
    only_slow = config.option.markexpr.startswith("slow") and collection_path.match("test_*.py")
    return True if only_slow and "pytest.mark.slow" not in collection_path.read_text() else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Keep libraries and tests out of what collections of garbage walk: they stay, and cost a fifth of all time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that may take longest, so that no worker is left alone with one at the end."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))
    longest: Counter[Path] = Counter()
    for item in items:
        longest[item.path] = max(longest[item.path], *(mark.args[0] for mark in item.iter_markers("timeout")), 0)
    num_tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-longest[item.path], -num_tests[item.path]))
