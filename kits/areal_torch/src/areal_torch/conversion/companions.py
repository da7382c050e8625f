"""Files of a model folder that hold no weights.

Knows: their names.
Does not know: what is in them.
"""

from __future__ import annotations

from pathlib import Path

from areal_torch.export import COMPANIONS

PATTERNS = ("config.json", *COMPANIONS)


def companions_of(folder: Path) -> list[Path]:
    """Return them, sorted, each once."""
    return sorted({file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()})
