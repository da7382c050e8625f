"""A task for a model that sees: name the colour of a picture, with one letter. A user's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image

from areal_core import dataset, reward

COLOURS = {"r": (230, 20, 20), "g": (20, 200, 40), "b": (30, 40, 230)}
SIDE = 28
"""Pixels of one token of the tiny model; every second picture is twice as wide."""


@dataset("colours")
def colours() -> list[dict[str, Any]]:
    """Give ninety-six pictures of one colour each, in slightly different shades. Any: as rows are."""
    return [_row(number) for number in range(96)]


@reward("named")
def named(completion: str, row: Mapping[str, Any], **_: Any) -> float:
    """Pay for the first letter of the colour and nothing else. Any: as rewards are."""
    return float(completion == row["answer"])


def _row(number: int) -> dict[str, Any]:
    name = list(COLOURS)[number % len(COLOURS)]
    shade = tuple(min(255, max(0, value + number * 7 % 21 - 10)) for value in COLOURS[name])
    picture = Image.new("RGB", (SIDE * (1 + number % 2), SIDE), shade)
    return {"messages": [{"role": "user", "content": "c"}], "images": [picture], "answer": name}
