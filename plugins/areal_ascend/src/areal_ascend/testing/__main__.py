"""Run a command as on an NPU machine: `python -m areal_ascend.testing COMMAND ...`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from areal_ascend.testing import folder


def main() -> int:
    """Make the folder, run the command, remove the folder; return the command's exit status."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m areal_ascend.testing COMMAND ...\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="areal-npu-") as made:
        refused = folder.build(Path(made))
        if refused:
            sys.stderr.write(f"without a stand-in, refused when called: {', '.join(refused)}\n")
        return subprocess.run(sys.argv[1:], env=folder.environment(Path(made), os.environ)).returncode


if __name__ == "__main__":
    sys.exit(main())
