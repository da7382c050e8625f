"""What is seen of a folder while others write: a look before each event, and never at a look."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from areal_conformance.oracles.watching import watching

PATIENCE_S = 60.0


def test_each_event_is_looked_at_before_it_happens(tmp_path: Path) -> None:
    """A file is not there yet when its opening is looked at, and is when the next event comes; none after the block."""
    seen: list[list[str]] = []
    with watching(lambda: seen.append(sorted(path.name for path in tmp_path.iterdir()))):
        (tmp_path / "a").write_text("1")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "b").unlink()
    (tmp_path / "later").write_text("2")

    assert seen == [[], ["a"], ["b"]]


def test_nothing_is_looked_at_after_the_block_though_a_look_outlasts_it(tmp_path: Path) -> None:
    """Another thread is in the middle of a look when the block ends, and opens files of its own: both are no matter."""
    looking, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def look() -> None:
        seen.append("a look")
        looking.set()
        assert go_on.wait(PATIENCE_S)
        (tmp_path / "of the look").write_text("1")

    with ThreadPoolExecutor(1) as pool:
        with watching(look):
            writing = pool.submit((tmp_path / "of the thread").write_text, "1")
            assert looking.wait(PATIENCE_S)
        go_on.set()
        writing.result(PATIENCE_S)
        (tmp_path / "later").write_text("2")

    assert seen == ["a look"]
