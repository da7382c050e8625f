"""Where a job of a cluster begins: the run, and the run once more if its controller was killed.

    python -m areal_ray.job.again 3 /shared/run run.yaml seed=1     in that folder, at most four times in all

Knows: `areal train`, and whether its run folder holds a state.
Does not know: why a controller was killed; one that ends by itself is not started again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_core.loop.run_folder import RunFolder

_TRAIN = (sys.executable, "-m", "areal_core.cli.main", "train")


def main(restarts: int, folder: str, words: Sequence[str]) -> int:
    """Run until it ends by itself, or was killed once too often; return its exit code.

    Args:
        folder: the run folder; what it holds is gone on with.
        words: the run file, and overrides but `out`.
    """
    for number in range(restarts + 1):
        holds = bool(RunFolder(Path(folder)).how_to_go_on())
        code = _run([*_TRAIN, *words, *(["--resume", folder] if holds else [f"out={folder}"])])
        if code >= 0 or number == restarts:
            break
        print(f"the controller was killed by signal {-code}: restart {number + 1} of {restarts}", flush=True)  # noqa: T201
    return code if code >= 0 else 128 - code


def _run(words: Sequence[str]) -> int:
    """Run a command, hand on what asks it to end, and return its exit code, or minus the signal that killed it."""
    process = subprocess.Popen(words)
    asked = False

    def hand_on(number: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if asked and code < 0 else code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
