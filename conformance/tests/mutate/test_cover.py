"""What lines of checks say of a backend's modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_conformance.mutate.cover import Coverage
from areal_conformance.mutate.source import Source

MODULE = """\
LIMIT = 3


def doubled(number):
    return number * 2
"""


@pytest.mark.parametrize(
    ("text", "lines", "used"),
    [(MODULE, {1, 4}, False), (MODULE, {1, 4, 5}, True), (MODULE, set(), False), ("LIMIT = 3\n", {1}, True)],
)
def test_a_module_that_is_only_imported_is_not_used(tmp_path: Path, text: str, lines: set[int], used: bool) -> None:
    """Another plugin's, beside the backend in its package, is imported too; what has no function has only that."""
    path = tmp_path / "beside.py"
    path.write_text(text)

    assert Coverage(lines={"transport.a.b": {path: lines}}).uses(Source.read("mine.beside", path)) is used
