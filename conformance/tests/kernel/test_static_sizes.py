"""Numbers of a source that look like a size at which it goes another way."""

from __future__ import annotations

import ast

import attrs
import pytest

from areal_conformance.benches.static import StaticBench
from areal_conformance.checks.static.sizes import accounted, sizes_of
from areal_conformance.outcome import Violation
from areal_conformance.target import Locator, locate

_KIT = {
    "areal_torch.logprobs:CHUNK_ELEMENTS",
    "areal_torch.logprobs:KEEP_ELEMENTS",
    "areal_torch.export:FILE_BYTES",
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SIZE = 4 << 10\nif n > SIZE: pass", True),
        ("SIZE: int = 2 * 3\nx[:SIZE]", True),
        ("BASE = 8\nSIZE = BASE**2\nfor i in range(0, n, SIZE): pass", True),
        ("SIZE = 64\ny = x // SIZE", True),
        ("_SIZE = 64\ny = min(x, 2 * _SIZE)", True),
        ("SIZE = 64\ny = torch.split(x, SIZE)", True),
        ("SIZE = (32, 8)\nlargest(SIZE)", True),
        ("SIZE = 1\nif n > SIZE: pass", False),
        ("SIZE = 4.5\nif n > SIZE: pass", False),
        ("SIZE = True\nif n == SIZE: pass", False),
        ("SIZE = 64\nprint(SIZE)", False),
        ("size = 64\nif n > size: pass", False),
        ("def f():\n    SIZE = 64\n    return n > SIZE", False),
    ],
)
def test_a_size_is_a_number_in_capitals_that_is_decided_by(text: str, found: bool) -> None:
    """Compared, counted to, divided, cut or bounded by; not one, no fraction, nothing of a function's own."""
    places = {place.lstrip("_").replace(":_", ":") for place in sizes_of({"mine": ast.parse(text)})}

    assert ("mine:SIZE" in places) is found


def test_a_size_may_be_decided_by_in_another_module() -> None:
    """It is named where it stands; a module with a number of that name means its own."""
    texts = {
        "a": "SIZE = 64",
        "b": "from a import SIZE\nif n > SIZE: pass",
        "c": "import a\nif n > a.SIZE: pass",
        "d": "SIZE = 65\nif n > SIZE: pass",
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}

    assert {"a:SIZE"} == set(sizes_of({name: trees[name] for name in "ab"}))
    assert {"a:SIZE"} == set(sizes_of({name: trees[name] for name in "ac"}))
    assert {"d:SIZE"} == set(sizes_of({name: trees[name] for name in "ad"}))


def test_without_no_threshold_open_numbers_are_a_note() -> None:
    """A backend is held to all of its numbers once it has begun to say why."""
    whole = locate(Locator(role="infer", name="reference"))
    bench = StaticBench(attrs.evolve(whole, adapter=attrs.evolve(whole.adapter, no_threshold={}, thresholds=())))

    accounted.body(bench)

    assert "areal_reference.infer.cache:FIRST_ROWS" in bench.notes[0]


@pytest.mark.parametrize(
    ("excused", "told"),
    [
        ({"areal_reference.infer.loading:PROBE_TOKENS": "x", "areal_reference.infer:GONE": "x"}, "GONE, where"),
        ({"areal_reference.infer.loading:PROBE_TOKENS": " "}, "PROBE_TOKENS no reason"),
        ({"areal_reference.infer.cache:FIRST_ROWS": "x"}, "goes another way at .*PROBE_TOKENS"),
    ],
)
def test_what_is_excused_is_there_and_has_a_reason(excused: dict[str, str], told: str) -> None:
    """And what is neither excused nor a threshold is named."""
    whole = locate(Locator(role="infer", name="reference"))
    bench = StaticBench(attrs.evolve(whole, adapter=attrs.evolve(whole.adapter, no_threshold=excused)))

    with pytest.raises(Violation, match=told):
        accounted.body(bench)


@pytest.mark.parametrize("name", ["reference", "fsdp", "archon", "megatron"])
def test_trainers_of_the_kit_declare_its_sizes(name: str) -> None:
    """Each number of the kit at which all of them go another way is a threshold of each."""
    adapter = locate(Locator(role="train", name=name)).adapter

    assert {one.place for one in adapter.thresholds} >= _KIT
