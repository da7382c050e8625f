"""Fail when the core outgrows its bound: `make lint` runs it.

Knows: every line counts, blanks and docstrings included.
Does not know: import cycles; import-linter's contracts in pyproject.toml refuse them.
"""

from __future__ import annotations

import sys
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "src" / "areal_core"
MAX_LINES = 15_000


def main() -> int:
    """Return 1 if the core has more than `MAX_LINES` lines, and tell where they are."""
    lines = {path: len(path.read_text().splitlines()) for path in CORE.rglob("*.py")}
    total = sum(lines.values())
    if total <= MAX_LINES:
        return 0
    folders = sorted({path.relative_to(CORE).parts[0] for path in lines})
    sizes = {name: sum(n for path, n in lines.items() if path.relative_to(CORE).parts[0] == name) for name in folders}
    print(f"src/areal_core has {total} lines, at most {MAX_LINES} are allowed; move what is not contract or loop")
    print("  " + ", ".join(f"{name} {size}" for name, size in sizes.items()))
    return 1


if __name__ == "__main__":
    sys.exit(main())
