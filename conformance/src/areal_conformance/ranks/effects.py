"""A program that asks on every rank what options of a variant do, and what the engine does without them.

Knows: that an adapter says what shows it.
Does not know: what must be seen; the checks judge.
"""

from __future__ import annotations

from typing import Any

from areal_conformance.ranks.bench import RankBench


def shown(bench: RankBench, layout: dict[str, int], variant: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Start with the options of a variant, and without; tell what shows, each time."""
    declared = bench.target.adapter.variants[variant]
    assert declared.shows is not None
    folder = bench.model(**declared.model)
    found = {}
    for name in (variant, ""):
        with bench.varied(name), bench.engine(model=folder, layout=layout, **spec) as engine:
            found["with" if name else "without"] = declared.shows(engine)
            bench.share()
    return found
