"""Wall time of `areal --help`, against the budget of 0.3 s; and against an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import frame

BUDGET_S = 0.3


def run(*command: str) -> None:
    """Run one command to its end."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Measure both in turns."""
    options = frame.parser(__doc__).parse_args()
    areal = str(Path(sys.executable).with_name("areal"))
    timing = frame.compare(
        {"help": lambda: run(areal, "--help"), "python": lambda: run(sys.executable, "-c", "pass")},
        repeats=3 if options.quick else 21,
    )
    result = frame.Result(
        name="help",
        figure=frame.Figure.of(timing["help"].seconds, BUDGET_S),
        what=f"seconds of areal --help / {BUDGET_S} s",
        details={
            "seconds": timing["help"].median,
            "over_bare_python": timing["help"].median / timing["python"].median,
            "timing": timing,
        },
    )
    return frame.finish(result, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
