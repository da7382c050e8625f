"""Run a script as the ranks of one role: real processes, as many as asked for, with a log each.

Knows: how ranks are started together and ended together, and how they tell each other things without a group.
Does not know: what they compute; the script writes its results into the folder, and the test reads them there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SHOWN = 3000
"""Characters at the end of each log that a failure shows."""
_LIMIT_S = 100.0
"""How long a rank listens for another."""
_LOOK_S = 0.01


def run_ranks(
    script: Path, folder: Path, world: int, *, limit_s: float, environs: Sequence[Mapping[str, str]] = ()
) -> None:
    """Run `python SCRIPT RANK WORLD FOLDER` for every rank at once; return when all have ended well.

    One thread each; what they print is in `folder/log-WORLD-RANK.txt`.

    Args:
        limit_s: how long each rank may take, in seconds.
        environs: more environment variables, one mapping per rank.

    Raises:
        AssertionError: a rank ended with an error; it shows the end of every log.
        subprocess.TimeoutExpired: a rank did not end. None is left running in any case.
    """
    common = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    logs = [folder / f"log-{world}-{rank}.txt" for rank in range(world)]
    with ExitStack() as stack:
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(world), str(folder)],
                stdout=stack.enter_context(log.open("w")),
                stderr=subprocess.STDOUT,
                env={**common, **(environs[rank] if environs else {})},
            )
            for rank, log in enumerate(logs)
        ]
        try:
            codes = [process.wait(timeout=limit_s) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if any(codes):
        raise AssertionError(f"ranks ended with {codes}:\n" + "\n".join(log.read_text()[-SHOWN:] for log in logs))


def tell(folder: Path, name: str, said: Any) -> None:  # Any: JSON
    """Leave a file for the other rank, whole or not at all."""
    part = folder / f"{name}.part"
    part.write_text(json.dumps(said))
    part.replace(folder / name)


def hear(folder: Path, name: str) -> Any:  # Any: JSON
    """Wait for a file of the other rank's."""
    deadline = time.monotonic() + _LIMIT_S
    while not (folder / name).exists():
        assert time.monotonic() < deadline, f"{name} did not come"
        time.sleep(_LOOK_S)
    return json.loads((folder / name).read_text())
