"""What an engine says to a parallel layout it cannot build.

Knows: the letters of backend strings.
Does not know: meshes, or which engines exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from areal_core.contract.errors import LayoutError

LETTERS: Mapping[str, str] = {"d": "data", "t": "tensor", "p": "pipeline", "c": "context", "e": "expert"}


def check_layout(layout: Mapping[str, int], world_size: int, *, engine: str, can: str, fix: str) -> None:
    """Refuse degrees above 1 of letters not in `can`, and a product that is not the number of ranks.

    Raises:
        LayoutError: naming the letter, and with `fix` the engines that can.
    """
    for letter, degree in layout.items():
        if degree != 1 and letter not in can:
            raise LayoutError(
                f"{engine} has no {LETTERS.get(letter, letter)} parallelism, got {letter}{degree}",
                why=f"it splits over {', '.join(LETTERS[c] for c in can) or 'nothing'}",
                fix=fix,
            )
    ranks = prod(layout.get(letter, 1) for letter in "dtpc")
    if layout and ranks != world_size:
        raise LayoutError(
            f"{engine} was started on {world_size} ranks for a layout of {ranks}",
            why="the layout is " + "".join(f"{letter}{degree}" for letter, degree in layout.items()),
            fix="start one rank per part",
        )
