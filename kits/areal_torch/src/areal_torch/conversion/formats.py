"""Which formats there are: the core's, and those that plugins add.

Knows: names, and how a folder's format is found.
Does not know: what is in a folder.
"""

from __future__ import annotations

from pathlib import Path

from areal_core.contract.errors import CheckpointError, WrongType
from areal_core.plugins.discovery import discover
from areal_core.plugins.hooks import Hooks
from areal_core.plugins.install import pip_install
from areal_torch.conversion.dcp import DCPFolder
from areal_torch.conversion.format import Format
from areal_torch.conversion.hf import HFFolder


def formats(prefix: str = "") -> dict[str, Format]:
    """Return every format by name. Those of plugins are asked first: theirs may look like the core's."""
    added = [form for form in Hooks(discover().hooks).collect("areal_checkpoint_formats") if _is_format(form)]
    known: list[Format] = [*added, HFFolder(), DCPFolder(prefix)]  # looked at above
    return {form.name: form for form in known}


def named(name: str, known: dict[str, Format]) -> Format:
    """Return a format by name.

    Raises:
        WrongType: there is none of that name.
    """
    if name not in known:
        raise WrongType(
            f"unknown checkpoint format {name!r}",
            why=f"formats are {', '.join(sorted(known))}",
            fix=pip_install("areal-megatron") if name == "megatron" else "",
        )
    return known[name]


def detected(folder: Path, known: dict[str, Format]) -> Format:
    """Return the format of a folder.

    Raises:
        CheckpointError: it is no folder, or of no format that is known.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder", why="a checkpoint is one")
    for form in known.values():
        if form.detect(folder):
            return form
    there = ", ".join(sorted(file.name for file in folder.iterdir())[:6]) or "nothing"
    raise CheckpointError(
        f"{folder} is not a checkpoint areal can read",
        why=f"formats are {', '.join(sorted(known))}; the folder holds {there}",
        fix="name the folder that holds the weight files themselves",
    )


def _is_format(given: object) -> bool:
    return all(hasattr(given, name) for name in ("name", "detect", "open", "create"))
