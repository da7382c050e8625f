"""What a transport holds of this machine: files, descriptors, mappings, threads, children; where a version's bytes lie.

Knows: where to look, before and after, and what files an offer or a folder leads to.
Does not know: any transport; one that keeps its bytes elsewhere offers faults of its own.
"""

from __future__ import annotations

import gc
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
from attrs import frozen

from areal_conformance.benches.process import descriptors
from areal_core.contract.weights import Offer

_COMPILER = ("torchinductor_", "triton")


@frozen(kw_only=True)
class Footprint:
    """One look. Everything is a name, so that what is left over can be told."""

    files: frozenset[str]
    descriptors: frozenset[str]
    mappings: frozenset[str]
    threads: frozenset[str]
    children: frozenset[str]

    def beyond(self, before: Footprint) -> list[str]:
        """Return what is there now and was not before."""
        left: list[str] = []
        for kind in ("files", "descriptors", "mappings", "threads", "children"):
            left += [f"{kind}: {name}" for name in sorted(getattr(self, kind) - getattr(before, kind))]
        return left

    @property
    def size(self) -> int:
        """Return how many things there are."""
        return sum(map(len, (self.files, self.descriptors, self.mappings, self.threads, self.children)))


def look(folder: Path) -> Footprint:
    """Look at this process and at the folder that stands for its temporary one."""
    gc.collect()
    return Footprint(
        files=frozenset(str(path.relative_to(folder)) for path in under(folder)),
        descriptors=descriptors(),
        mappings=_mappings(folder),
        threads=frozenset(f"{thread.name} {thread.ident}" for thread in threading.enumerate()),
        children=frozenset(str(child.pid) for child in psutil.Process().children(recursive=True)),
    )


def under(folder: Path) -> list[Path]:
    """Return everything in a folder but what torch's compiler keeps in any temporary folder."""
    found = folder.rglob("*") if folder.is_dir() else ()
    return sorted(path for path in found if not path.relative_to(folder).parts[0].startswith(_COMPILER))


def bytes_under(folder: Path) -> int:
    """Return the size of all files of a folder."""
    return sum(path.stat().st_size for path in under(folder) if path.is_file())


def room(folder: Path, known: Iterable[Path] = ()) -> int:
    """Return the bytes that files take: those under a folder, under known paths, and those without a name held here."""
    found = {path for place in (folder, *known) for path in ([place] if place.is_file() else under(place))}
    own = Path("/proc/self/fd")
    if own.is_dir():
        found |= set(own.iterdir())
    taken: dict[tuple[int, int], int] = {}
    for path in found:
        try:
            status = path.stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            taken[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(taken.values())


def _mappings(folder: Path) -> frozenset[str]:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return frozenset()
    shown = set()
    for line in maps.read_text().splitlines():
        place = line.split(maxsplit=5)[5:]
        if place and ("memfd:" in place[0] or place[0].startswith(("/dev/shm/", str(folder)))):
            shown.add(f"{line.split()[0]} {place[0]}")
    return frozenset(shown)


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
