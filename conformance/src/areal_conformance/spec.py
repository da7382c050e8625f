"""Where the sentence stands that a check guards: `train#send_weights` as a page and an anchor of the documentation.

A spec names a page of `docs/contract/` and, after `#`, one of its headings or something its contract module defines:
a class, or a method or field of one. The anchors of the latter are full dotted names.

Knows: pages, their modules, how anchors are made.
Does not know: the text of the pages.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

FOLDER = "docs/contract"

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "train": "areal_core.contract.train",
        "infer": "areal_core.contract.inference",
        "workflow": "areal_core.contract.workflow",
        "scheduler": "areal_core.contract.scheduler",
        "weights": "areal_core.contract.weights",
        "data": "areal_core.contract.data",
        "device": "areal_core.contract.device",
        "endpoint": "areal_agentic.endpoint",
        "renderer": "areal_agentic.renderer",
    }
)
"""Page -> the module it documents."""

PROTOCOLS = ("TrainEngine", "InferenceEngine", "Scheduler", "RolloutWorkflow", "WeightTransport")
"""Looked at first when a method is named."""


def link(spec: str) -> str:
    """Return the page and full anchor of a spec, relative to the repository.

    Example: link("train#send_weights") == "docs/contract/train.md#areal_core.contract.train.TrainEngine.send_weights"
    """
    page, _, anchor = spec.partition("#")
    full = dotted(page, anchor) or anchor
    return f"{FOLDER}/{page}.md" + (f"#{full}" if full else "")


def dotted(page: str, anchor: str) -> str | None:
    """Return the full name of what a page's module defines under a short name, None for a heading."""
    if "." in anchor:
        return anchor
    if page not in MODULES or not anchor:
        return None
    module = importlib.import_module(MODULES[page])
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    if anchor in own:
        return f"{module.__name__}.{anchor}"
    classes = sorted((name for name, value in own.items() if isinstance(value, type)), key=_protocols_first)
    for name in classes:
        if anchor in vars(own[name]) or anchor in getattr(own[name], "__annotations__", {}):
            return f"{module.__name__}.{name}.{anchor}"
    return None


def _protocols_first(name: str) -> tuple[bool, str]:
    return name not in PROTOCOLS, name
