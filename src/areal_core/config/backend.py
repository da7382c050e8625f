"""Backend strings: which plugin, and how many ways it is split. `fsdp:d4t2`, `vllm:d2t4`.

d data (or replicas), t tensor, p pipeline, c context, e expert parallel. The number of
processes is d * t * p * c; experts fold inside.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping

from attrs import field, frozen

from areal_core.contract.errors import LayoutError

AXES: Mapping[str, str] = {"d": "data", "t": "tensor", "p": "pipeline", "c": "context", "e": "expert"}

_SHAPE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(:(?P<layout>([a-z][0-9]+)*))?")


@frozen
class BackendString:
    """A parsed backend string. `str()` gives it back in the order d t p c e.

    Example: BackendString("fsdp", {"d": 4, "t": 2})
    """

    name: str
    layout: Mapping[str, int] = field(factory=lambda: {"d": 1})

    @property
    def data(self) -> int:
        """Return the data-parallel degree: ranks holding different samples, or replicas."""
        return self.layout.get("d", 1)

    @property
    def ranks_per_replica(self) -> int:
        """Return how many ranks share one copy of the model."""
        return math.prod(self.layout.get(axis, 1) for axis in "tpc")

    @property
    def world_size(self) -> int:
        """Return the number of ranks in all."""
        return self.data * self.ranks_per_replica

    def __str__(self) -> str:
        shape = "".join(f"{axis}{self.layout[axis]}" for axis in AXES if axis in self.layout)
        return f"{self.name}:{shape}" if shape else self.name


def parse_backend(text: str) -> BackendString:
    """Read a backend string; a missing layout means one rank.

    Raises:
        LayoutError: what is wrong, with the grammar and the nearest reading.
    """
    compact = "".join(text.split())
    match = _SHAPE.fullmatch(compact)
    if match is None:
        raise LayoutError(
            f"backend {text!r} cannot be read",
            why="it is a name, a colon and letters with numbers: d data, t tensor, p pipeline, c context, e expert",
            fix="for example fsdp:d4t2 or vllm:d2",
        )
    layout: dict[str, int] = {}
    for axis, digits in re.findall(r"([a-z])([0-9]+)", match["layout"] or ""):
        if axis not in AXES:
            near = difflib.get_close_matches(axis, AXES, n=1)
            raise LayoutError(
                f"backend {text!r} has an unknown axis {axis!r}",
                why=f"axes are {', '.join(f'{letter} ({name})' for letter, name in AXES.items())}",
                fix=f"did you mean {near[0]!r}?" if near else "",
            )
        if axis in layout:
            raise LayoutError(f"backend {text!r} names axis {axis!r} twice", fix="give each axis one number")
        if int(digits) < 1 or digits.startswith("0"):
            raise LayoutError(f"backend {text!r}: {axis}{digits} is not a size", fix="sizes are whole numbers from 1")
        layout[axis] = int(digits)
    return BackendString(match["name"], layout or {"d": 1})
