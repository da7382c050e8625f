"""Metrics of minibatches and micro-batches into one number each.

Knows: sums with weights, and which of them are extremes.
Does not know: what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from areal_core.contract.train import Sum

EXTREMES = {"_min": min, "_max": max}
"""Metrics whose names end so have the weight 1 and are no sums: of two, the lesser or the larger one counts."""


def add_sums(total: dict[str, Sum], more: Mapping[str, Sum]) -> None:
    """Add metrics into `total`, name by name; of two extremes, both of weight 1, the further one stays."""
    for name, new in more.items():
        have, further = total.setdefault(name, Sum(value=0.0, weight=0.0)), EXTREMES.get(name[-4:])
        if further is not None and have.weight == new.weight == 1.0:
            total[name] = Sum(value=further(have.value, new.value), weight=1.0)
        else:
            total[name] = Sum(value=have.value + new.value, weight=have.weight + new.weight)


def means(sums: Mapping[str, Sum]) -> dict[str, float]:
    """Return value / weight by name. An extreme that an engine added up over micro-batches is none: it is left out."""
    return {n: s.value / s.weight for n, s in sums.items() if s.weight and (s.weight == 1.0 or n[-4:] not in EXTREMES)}
