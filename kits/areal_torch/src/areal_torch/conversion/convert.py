"""One checkpoint made into another: file by file, taken up again where it stopped, every tensor compared.

Knows: the journal of what is done, fingerprints.
Does not know: formats, or how progress is shown.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, evolve, frozen
from torch import Tensor

from areal_core.contract.errors import CheckpointError, RunFolderError
from areal_core.weights.tensors import fingerprint
from areal_torch.conversion.companions import companions_of
from areal_torch.conversion.format import Format, Reader, TensorInfo
from areal_torch.conversion.grouping import size_of
from areal_torch.folder import storage_errors

JOURNAL = "areal-convert.json"
PARTIAL = ".partial"


@frozen(kw_only=True)
class Progress:
    """How far it is: bytes of tensors written or compared, of all."""

    stage: str
    done: int
    total: int


@frozen(kw_only=True)
class Converted:
    """What was done. `resumed` counts files that an earlier attempt had written."""

    folder: Path
    num_tensors: int
    num_bytes: int
    resumed: int


def convert(
    source: Path,
    reader: Reader,
    target: Path,
    form: Format,
    *,
    dtype: str = "",
    like: Path | None = None,
    tell: Callable[[Progress], None] = lambda _progress: None,
) -> Converted:
    """Write what `reader` reads from `source` to the folder `target` in another format.

    `target` exists only when it is complete and every tensor in it was read back and found equal. Until then it is
    `<target>.partial`; called again with the same arguments, the files in it that are whole are not written again.

    Args:
        dtype: cast floating-point tensors to it; "" leaves them as they are.
        like: a folder with the model's config.json and tokenizer; the source itself if None.

    Raises:
        RunFolderError: `target` exists.
        CheckpointError: the source is torn, has no config.json, or a tensor was changed during conversion.
        StorageError: `target` cannot be written.
    """
    if target.exists():
        raise RunFolderError(f"{target} exists", why="nothing is overwritten", fix="remove it or name another folder")
    infos = [evolve(info, dtype=_cast(info.dtype, dtype)) for info in reader.tensors()]
    partial = target.with_name(target.name + PARTIAL)
    journal = _Journal.open(partial, _digest(source, reader, form, infos))
    beside = _companions(reader, like, partial)
    writer = form.create(partial, infos, beside)
    sizes = {info.name: size_of(info) for info in infos}
    total, done, resumed = sum(sizes.values()), 0, 0
    for number, names in enumerate(writer.files()):
        if journal.has(number):
            resumed += 1
        else:
            tensors = {name: _as(reader.read(name), dtype) for name in names}
            writer.write(number, tensors)
            journal.add(number, {name: fingerprint(tensor) for name, tensor in tensors.items()})
        done += sum(sizes[name] for name in names)
        tell(Progress(stage="write", done=done, total=total))
    writer.finish()
    _compare(form.open(partial), journal.fingerprints(), sizes, total, tell)
    journal.remove()
    with storage_errors(target):
        partial.rename(target)
    return Converted(folder=target, num_tensors=len(infos), num_bytes=total, resumed=resumed)


def _companions(reader: Reader, like: Path | None, partial: Path) -> Path:
    """Copy the files that hold no weights; return the folder they are in now."""
    found = companions_of(like) if like else reader.companions()
    if not any(file.name == "config.json" for file in found):
        raise CheckpointError(
            f"{like or 'the source'} has no config.json",
            why="a model folder cannot be written without it",
            fix="name a folder of the same model that has one: --like DIR",
        )
    for file in found:
        with storage_errors(partial / file.name):
            shutil.copyfile(file, partial / file.name)
    return partial


def _compare(
    back: Reader,
    expected: Mapping[str, str],
    sizes: Mapping[str, int],
    total: int,
    tell: Callable[[Progress], None],
) -> None:
    """Read everything back and compare it with what was read from the source."""
    names = {info.name for info in back.tensors()}
    if names != set(expected):
        raise CheckpointError(
            "the new checkpoint holds other tensors than the source",
            why=f"they differ in {', '.join(sorted(names ^ set(expected))[:4])}",
        )
    done = 0
    for name, value in expected.items():
        if fingerprint(back.read(name)) != value:
            raise CheckpointError(
                f"{name} was changed during conversion",
                why="read back, its fingerprint differs from that of the source",
                fix="check the disk, remove the partial folder and convert again",
            )
        done += sizes[name]
        tell(Progress(stage="compare", done=done, total=total))


@frozen(eq=False)
class _Journal:
    """Which files are whole, and the fingerprints of their tensors. One line a file, appended when it is there."""

    file: Path
    done: dict[int, dict[str, str]]

    @classmethod
    def open(cls, partial: Path, digest: str) -> _Journal:
        """Take up what an earlier attempt of the same conversion left; anything else there is removed."""
        file = partial / JOURNAL
        try:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        except (OSError, ValueError):
            lines = []
        if not lines or lines[0] != {"conversion": digest}:
            shutil.rmtree(partial, ignore_errors=True)
            with storage_errors(partial):
                partial.mkdir(parents=True)
                file.write_text(json.dumps({"conversion": digest}) + "\n")
            lines = []
        return cls(file, {line["file"]: line["fingerprints"] for line in lines[1:]})

    def has(self, number: int) -> bool:
        """Tell whether a file is whole."""
        return number in self.done

    def add(self, number: int, fingerprints: dict[str, str]) -> None:
        """Remember that it is."""
        self.done[number] = fingerprints
        with storage_errors(self.file), self.file.open("a") as stream:
            stream.write(json.dumps({"file": number, "fingerprints": fingerprints}) + "\n")

    def fingerprints(self) -> dict[str, str]:
        """Return those of all files."""
        return {name: value for found in self.done.values() for name, value in found.items()}

    def remove(self) -> None:
        """Leave nothing of it in the finished folder."""
        self.file.unlink()


def _digest(source: Path, reader: Reader, form: Format, infos: Sequence[TensorInfo]) -> str:
    """Tell one conversion from another: what is read, from which bytes on disk, and what is made of it."""
    there = [file for file in source.iterdir() if file.exists()]  # not a link to nothing
    files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in there)
    facts: Any = [str(source.resolve()), files, form.name, repr(form), [asdict(info) for info in infos]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _cast(given: str, wanted: str) -> str:
    return wanted if wanted and getattr(torch, given).is_floating_point else given


def _as(tensor: Tensor, dtype: str) -> Tensor:
    return tensor.to(getattr(torch, dtype)) if dtype and tensor.is_floating_point() else tensor
