"""Where a version's bytes lie, for those who look behind the contract: files an offer or a folder leads to.

Knows: offers and folders.
Does not know: any transport; one that keeps its bytes elsewhere offers faults of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from areal_core.contract.weights import Offer

_SHARED = (Path("/dev/shm"), Path("/tmp"))


def places(offer: Offer) -> set[Path]:
    """Return every path of an offer's location that is there now, with the folders made for it."""
    found: set[Path] = set()
    roots = {Path(tempfile.gettempdir()).resolve(), *_SHARED}
    for value in offer.location.values():
        if isinstance(value, str) and value.startswith("/") and Path(value).exists():
            path = Path(value)
            found.add(path)
            for parent in path.parents:
                if parent in roots:
                    found |= {folder for folder in path.parents if parent in folder.parents}
                    break
    return found


def stores(offer: Offer, folder: Path) -> list[Path]:
    """Return the files with something in them that hold the version, the temporary folder's among them."""
    seen = {path for place in places(offer) | {folder} for path in _files(place)}
    return sorted(path for path in seen if _size(path))


def flip(path: Path, position: int, bit: int = 4) -> bool:
    """Flip one bit of a file in place; tell whether there was such a byte."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        if not byte:
            return False
        file.seek(position)
        file.write(bytes([byte[0] ^ bit]))
    return True


def _files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (path for path in place.rglob("*") if path.is_file())
    elif place.exists():
        yield place


def _size(path: Path) -> int:
    """Return how many bytes a file has; other processes' temporary files come and go."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
