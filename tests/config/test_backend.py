"""Backend strings: what is read is what was written, and nothing else is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_core.config.backend import AXES, BackendString, parse_backend
from areal_core.contract.errors import LayoutError

LAYOUTS = st.dictionaries(st.sampled_from(sorted(AXES)), st.integers(1, 64), min_size=1)


@given(name=st.sampled_from(["fsdp", "vllm", "my-engine", "a_b"]), layout=LAYOUTS)
def test_a_backend_string_reads_back_as_itself(name: str, layout: dict[str, int]) -> None:
    """Printing and reading are inverse."""
    backend = BackendString(name, layout)

    assert parse_backend(str(backend)) == backend


@given(layout=LAYOUTS)
def test_the_world_size_leaves_experts_out(layout: dict[str, int]) -> None:
    """Processes number d * t * p * c; expert parallelism folds inside."""
    backend = BackendString("x", layout)

    without = {axis: size for axis, size in layout.items() if axis != "e"}
    assert BackendString("x", without).world_size == backend.world_size
    assert backend.data * backend.ranks_per_replica == backend.world_size


def test_no_layout_means_one_rank() -> None:
    """`fsdp` alone is `fsdp:d1`."""
    assert parse_backend("fsdp") == parse_backend("fsdp:d1")


@pytest.mark.parametrize("text", ["", "fsdp:", "fsdp:4d", "fsdp(actor):d4", "fsdp:d4+vllm:d2", ":d4"])
def test_what_is_no_backend_string_is_refused_with_the_grammar(text: str) -> None:
    """The error tells the grammar; `fsdp:` with nothing after it means one rank."""
    if text == "fsdp:":
        assert parse_backend(text).world_size == 1
        return

    with pytest.raises(LayoutError, match=r"d data, t tensor|cannot be read"):
        parse_backend(text)


@pytest.mark.parametrize(("text", "message"), [("f:x2", "unknown axis"), ("f:d0", "not a size"), ("f:d2d3", "twice")])
def test_bad_sizes_and_axes_are_named(text: str, message: str) -> None:
    """A repeated axis is an error, never the last one wins."""
    with pytest.raises(LayoutError, match=message):
        parse_backend(text)
