"""The backends that must pass every check, levels 0 to 4.

Knows: their names, and with how many ranks.
Does not know: what they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from areal_conformance.target import Locator, locate
from areal_core.contract.errors import ArealError

RENDERERS = (
    "auto", "plain", "template", "chatml", "qwen2.5", "qwen3", "llama3", "deepseek", "glm4", "harmony", "second",
)  # fmt: skip
REFERENCES: tuple[Locator, ...] = (
    Locator(role="train", name="reference", ranks=2),
    Locator(role="train", name="second", ranks=2),
    Locator(role="infer", name="reference"),
    Locator(role="infer", name="second"),
    Locator(role="pair", name="reference+reference"),
    Locator(role="pair", name="second+second"),
    Locator(role="scheduler", name="local"),
    Locator(role="scheduler", name="second"),
    Locator(role="transport", name="disk"),
    Locator(role="transport", name="shm"),
    Locator(role="transport", name="collective"),
    Locator(role="transport", name="second"),
    Locator(role="workflow", name="single_turn"),
    Locator(role="workflow", name="second"),
    Locator(role="endpoint", name="http"),
    Locator(role="endpoint", name="second"),
    *(Locator(role="renderer", name=name) for name in RENDERERS),
    Locator(role="device", name="cpu"),
    Locator(role="device", name="cuda"),
    Locator(role="device", name="npu"),
    Locator(role="device", name="xpu"),
    Locator(role="device", name="mps"),
)


def present(locators: Iterable[Locator] = REFERENCES) -> tuple[tuple[Locator, ...], tuple[str, ...]]:
    """Return those that are installed, and one sentence for each that is not."""
    found, absent = [], []
    for locator in locators:
        try:
            locate(locator)
        except ArealError as error:
            absent.append(f"{locator.role}/{locator.name} is left out: {error.what}")
        else:
            found.append(locator)
    return tuple(found), tuple(absent)
