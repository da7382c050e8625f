"""Resume points: all of one or nothing, and never fewer than were there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.errors import StorageError
from areal_core.loop.checkpoint import Progress, read_progress

if TYPE_CHECKING:
    from ..bench import LoopBench


class _Role:
    """A training role that writes one file, and fails at a named method on demand."""

    def __init__(self, role: str, fails_at: str = "", seen: Callable[[], None] = lambda: None) -> None:
        self.role = role
        self.is_begun = False
        self._fails_at = fails_at
        self._seen = seen

    async def save_state(self, path: Path) -> None:
        self._write("save_state", path)

    async def save_weights(self, path: Path) -> None:
        self._write("save_weights", path)

    async def begin_state(self, path: Path) -> None:
        self._begun, self.is_begun = path, True

    async def state_written(self) -> bool:
        return True

    async def finish_state(self) -> None:
        self.is_begun = False
        self._write("finish_state", self._begun)

    def _write(self, method: str, path: Path) -> None:
        self._seen()
        path.mkdir(parents=True)
        (path / "half").write_text("x")
        if self._fails_at == method:
            raise OSError(28, "No space left on device")
        (path / "whole").write_text("x")


class _Learner:
    def __init__(self, fails_at: str = "", seen: Callable[[], None] = lambda: None) -> None:
        self.actor = _Role("actor", fails_at, seen)
        self.critic: _Role | None = None


def _progress(version: int) -> Any:
    return Progress(version=version, tasks={"frontier": 2 * version}, totals={"tokens": 8.0 * version})


async def _save(
    bench: LoopBench,
    folder: Any,
    version: int,
    fails_at: str = "",
    keep: int = 2,
    seen: Callable[[], None] = lambda: None,
) -> None:
    await bench.parts.save_checkpoint(folder, _Learner(fails_at, seen), _progress(version), keep=keep)


@check("loop.checkpoint.whole", level=Level.LOOP, law=4, spec="index#law-by-law")
async def whole(bench: LoopBench) -> None:
    """A checkpoint holds state, weights and the prompts they were trained on, of one version."""
    folder = bench.run_folder("run")
    for version in (1, 2):
        await _save(bench, folder, version)
    latest = folder.latest()
    expect(latest is not None, "no checkpoint is found after two were saved")
    assert latest is not None
    progress = read_progress(latest)
    expect(progress.version == 2, f"the newest checkpoint is of version {progress.version}, saved last was 2")
    expect(progress.tasks["frontier"] == 4, f"its prompts are those of {progress.tasks}, not of version 2")
    expect(progress.totals == {"tokens": 16.0}, f"its totals are {dict(progress.totals)}, not those of version 2")
    for part in ("actor", "model"):
        expect((latest / part / "whole").exists(), f"the checkpoint has no {part}")


@check("loop.checkpoint.all_or_nothing", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def all_or_nothing(bench: LoopBench) -> None:
    """A disk that fills up while saving leaves the previous checkpoint, nothing half-written, and an error."""
    for fails_at in ("save_state", "save_weights"):
        folder = bench.run_folder(fails_at)
        await _save(bench, folder, 1)
        before = folder.latest()
        try:
            await _save(bench, folder, 2, fails_at)
        except StorageError as error:
            expect("previous checkpoint" in str(error), f"the error does not say what is left: {error}")
        else:
            expect(False, f"a full disk in {fails_at} was not told")
        expect(folder.latest() == before, f"after a failed save the newest checkpoint is {folder.latest()}")
        left = [path.name for path in (folder.root / "checkpoints").iterdir() if path != before]
        expect(not left, f"a failed save left {', '.join(left)}")


@check("loop.checkpoint.keeps", level=Level.LOOP, law=4, spec="index#law-by-law")
async def keeps(bench: LoopBench) -> None:
    """The newest ones are kept, as many as asked for, and an old one goes only when a new one is complete."""
    folder = bench.run_folder("run")
    before: list[str] = []

    def still_there() -> None:
        gone = [name for name in before if not (folder.root / "checkpoints" / name / "loop.json").exists()]
        expect(not gone, f"{', '.join(gone)} went before the checkpoint that replaces it was complete")

    for version in (8, 9, 10, 11):
        before[:] = [path.name for path in folder.checkpoints()]
        await _save(bench, folder, version, seen=still_there)
    names = [path.name for path in folder.checkpoints()]
    expect(names == ["step-000010", "step-000011"], f"of versions 8 to 11 the last two are to be kept, not {names}")


@check("loop.checkpoint.background", level=Level.LOOP, law=4, spec="index#law-by-law")
async def background(bench: LoopBench) -> None:
    """A checkpoint that was begun is none until its states are finished; the one before stays the newest till then."""
    folder = bench.run_folder("run")
    for version in (1, 2):
        before = folder.latest()
        begun = await bench.parts.begin_checkpoint(folder, _Learner(), _progress(version), keep=1)
        expect(folder.latest() == before, f"begun, not finished: the newest checkpoint is {folder.latest()}")
        path = await begun.finish()
        expect(folder.latest() == path, f"finished, the newest checkpoint is {folder.latest()}, not {path}")
        progress = read_progress(path)
        found = (progress.version, progress.tasks["frontier"], progress.totals["tokens"])
        expect(found == (version, 2 * version, 8.0 * version), f"a checkpoint begun at version {version} holds {found}")
        for part in ("actor", "model"):
            expect((path / part / "whole").exists(), f"the checkpoint has no {part}")
    names = [path.name for path in folder.checkpoints()]
    expect(names == ["step-000002"], f"of versions 1 and 2 the last is to be kept, not {names}")


@check("loop.checkpoint.background_fails", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def background_fails(bench: LoopBench) -> None:
    """A disk that fills up while states are written is told, and leaves the checkpoint before and nothing else."""
    for fails_at in ("save_weights", "finish_state"):
        folder = bench.run_folder(fails_at)
        await _save(bench, folder, 1)
        before = folder.latest()
        try:
            begun = await bench.parts.begin_checkpoint(folder, _Learner(fails_at), _progress(2), keep=1)
            await begun.finish()
        except StorageError as error:
            expect("previous checkpoint" in str(error), f"the error does not say what is left: {error}")
        else:
            expect(False, f"a full disk in {fails_at} was not told")
        left = [path.name for path in (folder.root / "checkpoints").iterdir() if path != before]
        expect(folder.latest() == before and not left, f"a state that failed left {folder.latest()}, {left}")


@check("loop.checkpoint.background_ends", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def background_ends(bench: LoopBench) -> None:
    """A state that one role could not write leaves no other role's begun: each is finished before the error is told."""
    for role, fails_at in (("actor", "save_weights"), ("actor", "finish_state"), ("critic", "finish_state")):
        actor, critic = (_Role(name, fails_at if name == role else "") for name in ("actor", "critic"))
        learner, folder = _Learner(), bench.run_folder(f"{role}-{fails_at}")
        learner.actor, learner.critic = actor, critic
        try:
            await (await bench.parts.begin_checkpoint(folder, learner, _progress(1), keep=1)).finish()
        except StorageError:
            left = [one.role for one in (actor, critic) if one.is_begun]
            expect(not left, f"after a full disk in {fails_at} of the {role} nobody finishes the state of {left}")
        else:
            expect(False, f"a full disk in {fails_at} of the {role} was not told")
