"""Renderers of texts that take options and do not obey them, or go wrong only where one is set.

Knows: one defect each.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import attrs

from areal_proof.mutants.rows import breaking, row, then
from areal_renderers.plain import PlainConfig, PlainRenderer

breaks = breaking("renderer/plain", PlainRenderer)

ROWS = breaks.rows(
    row("SuffixesIgnored", "Takes suffixes, and writes none.", "renderer.options.shown",
        __init__=lambda original, config: original(attrs.evolve(config or PlainConfig(), suffixes={}))),
    row("SuffixClosesTwice", "Closes an answer that closed itself once more, where a suffix is set.",
        "renderer.options.checks", bind=then(lambda result: setattr(result, "_rest_of_close",
            lambda ids: [*result._close]) if result._suffix else None)),
)  # fmt: skip
