"""Parallel layouts: where each rank stands, and what an engine says to one it cannot build.

Knows: the letters of backend strings, the order of ranks.
Does not know: meshes, or which engines exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from areal_core.contract.errors import LayoutError

LETTERS: Mapping[str, str] = {"d": "data", "t": "tensor", "p": "pipeline", "c": "context", "e": "expert"}

ORDER = "pdct"
"""Neighbouring ranks differ in the last letter first: tensor ranks talk most, pipeline ranks least."""


def coordinates(layout: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return where a rank stands along each axis.

    Example: coordinates({"d": 2, "t": 2}, 3) == {"p": 0, "d": 1, "c": 0, "t": 1}
    """
    found: dict[str, int] = {}
    for letter in reversed(ORDER):
        rank, found[letter] = divmod(rank, layout.get(letter, 1))
    return {letter: found[letter] for letter in ORDER}


def data_ranks(layout: Mapping[str, int], world_size: int) -> list[int]:
    """Return the shard of the batch that each rank takes, in rank order."""
    return [coordinates(layout, rank)["d"] for rank in range(world_size)]


def check_divides(letter: str, degree: int, size: int, what: str) -> None:
    """Refuse to cut `size` things, for example 14 attention heads, into `degree` equal parts.

    Raises:
        LayoutError: it leaves a rest.
    """
    if size % degree:
        raise LayoutError(
            f"{letter}{degree} does not divide {size} {what}",
            why=f"every {LETTERS[letter]} rank takes equally many",
            fix=f"choose {letter} from {divisors(size)}",
        )


def divisors(size: int) -> str:
    """Return the degrees that cut `size` things into equal parts. Example: divisors(6) == "1, 2, 3, 6"."""
    return ", ".join(str(number) for number in range(1, size + 1) if size % number == 0)


def largest_share(size: int, degree: int) -> int:
    """Return how many of `size` things the first of `degree` ranks takes where they are shared out in runs."""
    return -(-size // degree)


def share_of(size: int, degree: int, rank: int) -> range:
    """Return the run of `size` things that a rank takes: as many as the first, the last what is left.

    As `Tensor.chunk` cuts, but that a run may be empty. Example: share_of(31, 2, 1) == range(16, 31)
    """
    share = largest_share(size, degree)
    return range(min(rank * share, size), min((rank + 1) * share, size))


def check_shares(letter: str, degree: int, size: int, what: str) -> None:
    """Refuse to share out `size` things, for example 9 vocabulary entries, where a rank would be left with none.

    Raises:
        LayoutError: it would.
    """
    if not share_of(size, degree, degree - 1):
        raise LayoutError(
            f"{letter}{degree} leaves a {LETTERS[letter]} rank without any of {size} {what}",
            why=f"each takes {largest_share(size, degree)}, and the last the rest",
            fix=f"choose a smaller {letter}",
        )


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
