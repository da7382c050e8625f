"""Which files of a distribution are a plugin's own, where it holds several plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_conformance.benches.static import StaticBench
from areal_conformance.checks.static.manifest import requires_complete
from areal_conformance.checks.static.source import loopback
from areal_conformance.outcome import Violation
from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_conformance.target import Locator, locate

_FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
_ENGINE = "class Engine:\n    version = 0\n"


def _bench(site: Path, monkeypatch: pytest.MonkeyPatch, name: str, engine: str) -> StaticBench:
    """Return the bench of a plugin in `areal_NAME.plain`, beside one in `areal_NAME.heavy` that imports torch."""
    package = f"areal_{name}"
    write_distribution(
        site,
        f"areal-{name}",
        entry_points={"areal.train": {name: f"{package}.manifest:MANIFEST"}},
        modules={
            f"{package}.manifest": manifest_source("train", name, factory=f"{package}.plain.engine:Engine"),
            f"{package}.plain.engine": engine + _ENGINE,
            f"{package}.plain.apart": "",
            f"{package}.shared": "from .heavy import engine\n",
            f"{package}.heavy.engine": "import torch\n",
        },
    )
    monkeypatch.syspath_prepend(str(site))
    return StaticBench(locate(Locator(role="train", name=name)))


def test_requirements_of_another_plugin_are_not_asked_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are those of the factory's package, imported or not, and no file of a package it does not import."""
    bench = _bench(tmp_path, monkeypatch, "apart", _FOR_TYPES)

    requires_complete.body(bench)

    assert {path.name for path, _ in bench.engine_sources()} == {"__init__.py", "engine.py", "apart.py"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("relative", "from ..heavy import engine"),
        ("within", "def f():\n    from .. import shared"),
        ("whole", "import areal_whole.shared"),
        ("taken", "from areal_taken import shared"),
    ],
)
def test_what_a_plugin_imports_from_its_neighbour_counts(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is imported by way of another package of the distribution is told by the file it is in."""
    bench = _bench(tmp_path, monkeypatch, name, f"{line}\n")

    with pytest.raises(Violation, match=r"torch \(engine\.py\)"):
        requires_complete.body(bench)


def test_colons_between_words_are_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of tests and tables of users have "::" in them; as a value of its own it is where a socket listens."""
    between = "NAME = 'a::b'.split('::')\nLAST = '::'.join(NAME)\nWHOLE = f'{NAME}::{LAST}'\nIS = '::' in LAST\n"
    loopback.body(_bench(tmp_path, monkeypatch, "between", between))

    addresses = {
        "alone": "HOST = '::'\n",
        "pieces": "PORT = 1\nPLACE = f'0.0.0.0:{PORT}'\n",
        "replaced": "HOST = 'localhost'.replace('localhost', '0.0.0.0')\n",
    }
    for name, line in addresses.items():
        with pytest.raises(Violation, match="addresses of every interface"):
            loopback.body(_bench(tmp_path, monkeypatch, name, line))
