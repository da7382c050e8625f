"""The traces in a run folder, `profile/step-5/actor-rank0.json.gz`: what `profile: {steps: [5]}` left there.

Knows: where they lie, and what opens them.
Does not know: who writes them.
"""

from __future__ import annotations

from pathlib import Path

HOW_TO_OPEN = "open a file at ui.perfetto.dev, or in chrome://tracing"


def traces_of(run: Path, step: int | None = None) -> list[str]:
    """Return the traces of one step, or of all, as paths in the run folder, steps in order."""
    pattern = f"step-{'*' if step is None else step}/*.json.gz"
    files = [path for path in (run / "profile").glob(pattern) if not path.name.startswith(".")]
    return [str(path.relative_to(run)) for path in sorted(files, key=lambda path: (_step(path), path.name))]


def _step(path: Path) -> int:
    number = path.parent.name.removeprefix("step-")
    return int(number) if number.isdecimal() else 0
