"""Make the environments of the ecosystem's packages: `python -m areal_environments.testing FOLDER PYTHON312`."""

from __future__ import annotations

import sys
from pathlib import Path

from areal_environments.testing.packages import make


def main() -> int:
    """Make them; return the exit status."""
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m areal_environments.testing FOLDER PYTHON312\n")
        return 2
    make(Path(sys.argv[1]), sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
