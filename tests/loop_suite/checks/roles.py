"""A checkpoint of a run with a critic: every role's own state, each time.

Knows: who wrote which folder of a checkpoint.
Does not know: what a state holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.loop.checkpoint import Progress, read_progress

if TYPE_CHECKING:
    from ..bench import LoopBench


@frozen
class _Role:
    """A training role that writes its name and version into what it saves."""

    role: str
    version: int

    async def save_state(self, path: Path) -> None:
        self._write("state", path)

    async def save_weights(self, path: Path) -> None:
        self._write("weights", path)

    def _write(self, what: str, path: Path) -> None:
        path.mkdir(parents=True)
        (path / "of").write_text(f"{what} of {self.role} at {self.version}")


@frozen
class _Learner:
    actor: _Role
    critic: _Role | None


@check("loop.checkpoint.every_role", level=Level.LOOP, law=4, spec="index#law-by-law")
async def every_role(bench: LoopBench) -> None:
    """Every checkpoint holds the state of each role that is trained, its own and of that version, and no other."""
    for name, with_critic in (("with critic", True), ("without", False)):
        folder = bench.run_folder(name)
        for version in (1, 2, 3, 10):
            learner = _Learner(_Role("actor", version), _Role("critic", version) if with_critic else None)
            progress = Progress(version=version, tasks={"frontier": version}, totals={})
            told = await bench.parts.save_checkpoint(folder, learner, progress, keep=2)
            latest = folder.latest()
            expect(latest is not None and told == latest, f"saved as {told}, the newest checkpoint is {latest}")
            assert latest is not None
            wanted = {"actor": f"state of actor at {version}", "model": f"weights of actor at {version}"}
            if with_critic:
                wanted["critic"] = f"state of critic at {version}"
            seen = {path.parent.name: path.read_text() for path in sorted(latest.glob("*/of"))}
            expect(seen == wanted, f"the checkpoint of step {version} ({name}) holds {seen}, it is to hold {wanted}")
            stands = read_progress(latest).version
            expect(stands == version, f"the checkpoint of step {version} says it is of version {stands}")
