"""Numbered device files.

Knows: how a driver numbers its files.
Does not know: any driver.
"""

from __future__ import annotations

import re
from pathlib import Path


def numbers(folder: Path, stem: str) -> list[int]:
    """Return the numbers of `stem0`, `stem1`, ... in a folder, ascending; control files beside them do not count."""
    matches = (re.fullmatch(rf"{stem}(\d+)", path.name) for path in folder.glob(f"{stem}[0-9]*"))
    return sorted(int(match[1]) for match in matches if match)
