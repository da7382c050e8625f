"""The folder of a run: one owner at a time, nothing half-written taken for whole, nothing of an earlier run lost.

Knows: locks, names, what is left behind by a kill.
Does not know: what a checkpoint holds; `checkpoint` looks into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_conformance.check import Level, check
from areal_conformance.outcome import Violation, expect
from areal_core.contract.errors import RunFolderError
from areal_core.loop.checkpoint import read_progress

from .checkpoint import _save as save

if TYPE_CHECKING:
    from areal_core.loop.run_folder import RunFolder

    from ..bench import LoopBench

_OWNER = """
import sys
from pathlib import Path
from areal_core.contract.errors import RunFolderError
from areal_core.loop.run_folder import RunFolder
try:
    with RunFolder(Path(sys.argv[1])).held(resume=False):
        print("held", flush=True)
        sys.stdin.read()
except RunFolderError as error:
    print("refused", flush=True)
"""
"""Another run, which owns a folder until its input ends."""


@check("loop.folder.one_owner", level=Level.LOOP, law=4, spec="index#law-by-law")
async def one_owner(bench: LoopBench) -> None:
    """A folder a live run owns is refused to another, however it asks, and untouched; it is free once that ended."""
    mine, other = bench.run_folder("run"), bench.run_folder("run")
    for _ in range(2):
        with contextlib.suppress(KeyError), mine.held(resume=False):
            for resume, archive in ((False, False), (True, False), (False, True)):
                _refused(other, f"resume={resume}, archive={archive}", resume=resume, archive=archive)
            raise KeyError("a run that fails lets go of its folder too")
    with mine.held(resume=False):
        mine.metrics.write_text('{"step": 1}\n')
        _refused(other, "archive=True", archive=True)
        kept = mine.metrics.exists() and mine.metrics.read_text()
        expect(kept == '{"step": 1}\n', "whoever was refused moved the files of the run that owns the folder")
    with bench.run_folder("another").held(resume=False), other.held(resume=False, archive=True):
        pass


@check("loop.folder.one_owner_of_all", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def one_owner_of_all(bench: LoopBench) -> None:
    """A folder owned by a run in another process is refused, both ways; a kill of its owner sets it free."""
    root = bench.folder / "run"
    folder = bench.run_folder("run")
    async with _owner(bench, root) as (process, word):
        expect(word == "held", f"a new folder was not given to the first run in a process of its own: {word!r}")
        _refused(folder, "a run in another process owns it")
        process.kill()
        await bench.soon(process.wait(), "a killed process")
        with folder.held(resume=False):
            async with _owner(bench, root) as (_, answer):
                expect(answer == "refused", f"a folder owned here was given to a run in another process: {answer!r}")


@check("loop.folder.earlier_run", level=Level.LOOP, law=4, spec="index#law-by-law")
async def earlier_run(bench: LoopBench) -> None:
    """What an earlier run left is neither mixed with a new one nor lost: refused, resumed, or moved aside whole."""
    folder = bench.run_folder("run")
    try:
        with folder.held(resume=True):
            raise Violation("a folder without any checkpoint was resumed")
    except RunFolderError:
        pass
    for number in (1, 2, 3):
        with folder.held(resume=False, archive=number > 1):
            expect(not folder.metrics.exists(), f"run {number} begins with the metrics of the one before")
            expect(folder.latest() is None, f"run {number} begins with checkpoint {folder.latest()} of the one before")
            folder.metrics.write_text(f"metrics {number}\n")
            await save(bench, folder, number)
        try:
            with folder.held(resume=False):
                raise Violation("a folder that holds a run was given to a new one")
        except RunFolderError:
            pass
        with folder.held(resume=True):
            latest = folder.latest()
            expect(latest is not None and latest.name == f"step-{number:06d}", f"resumed from {latest}")
            expect(folder.metrics.read_text() == f"metrics {number}\n", "a resume does not find its own metrics")
    for number in (1, 2):
        aside = folder.root.with_name(f"run.{number}")
        kept = aside.is_dir() and (aside / "metrics.jsonl").read_text()
        expect(kept == f"metrics {number}\n", f"run {number} was not kept in {aside.name}: {kept!r}")
        whole = (aside / "checkpoints" / f"step-{number:06d}" / "loop.json").exists()
        expect(whole, f"the checkpoint of run {number} was not kept with it")


@check("loop.folder.partial", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def partial(bench: LoopBench) -> None:
    """What a kill left half-written is never a checkpoint: not found, not resumed from, not in the next one."""
    folder = bench.run_folder("run")
    _left_by_a_kill(folder, 1)
    _found(folder, [], "a kill in the first save")
    try:
        with folder.held(resume=True):
            raise Violation("a run was resumed from a half-written checkpoint, the only one there")
    except RunFolderError:
        pass
    await save(bench, folder, 3)
    await save(bench, folder, 4)
    for killed in (2, 4, 5, 7, 10):
        _left_by_a_kill(folder, killed)
    _found(folder, [3, 4], "a kill in the saves of steps 1, 2, 4, 5, 7 and 10")
    await save(bench, folder, 7, seen=lambda: _found(folder, [3, 4], "while step 7 is being written"))
    _found(folder, [4, 7], "saving step 7 again")
    latest = folder.latest()
    assert latest is not None
    old = [path.name for path in latest.rglob("*") if path.name.startswith("left")]
    expect(not old, f"the checkpoint of step 7 holds {old} of the save that was killed")


@check("loop.folder.interrupted", level=Level.FAULTS, law=4, spec="index#law-by-law")
async def interrupted(bench: LoopBench) -> None:
    """A save that is cancelled or interrupted leaves the checkpoints that were there, and nothing else."""
    folder = bench.run_folder("run")
    await save(bench, folder, 5)

    for error in (asyncio.CancelledError(), KeyboardInterrupt(), ValueError("a bug of an engine")):

        def stop(raised: BaseException = error) -> None:
            raise raised

        # The same step again as well: what is there already must not go before the new one is complete.
        for version in (5, 6):
            try:
                await save(bench, folder, version, seen=stop)
            except type(error):
                pass
            else:
                raise Violation(f"{type(error).__name__} in a save of step {version} was swallowed")
            _found(folder, [5], f"{type(error).__name__} in a save of step {version}")
            left = [path.name for path in (folder.root / "checkpoints").iterdir() if path != folder.latest()]
            expect(not left, f"{type(error).__name__} in a save of step {version} left {left}")


@check("loop.folder.order", level=Level.LOOP, law=4, spec="index#law-by-law")
async def order(bench: LoopBench) -> None:
    """The newest checkpoint is the one of the greatest step, however many digits it has, and old ones go first."""
    for keep in (1, 2, 3):
        folder = bench.run_folder(f"keep-{keep}")
        done: list[int] = []
        for version in (9, 99_998, 999_999, 1_000_000, 1_000_001, 10_000_000):
            await save(bench, folder, version, keep=keep)
            done.append(version)
            _found(folder, done[-keep:], f"saving steps {done}, {keep} of them to be kept")
            latest = folder.latest()
            assert latest is not None
            seen = read_progress(latest).version
            expect(seen == version, f"the newest checkpoint is of version {seen}, saved last was {version}")


def _refused(folder: RunFolder, how: str, *, resume: bool = False, archive: bool = False) -> None:
    try:
        with folder.held(resume=resume, archive=archive):
            pass
    except RunFolderError as error:
        expect("in use" in error.what, f"a folder owned by a live run ({how}) is refused for another reason: {error}")
        return
    raise Violation(f"a folder owned by a live run was given to a second one ({how})")


def _left_by_a_kill(folder: RunFolder, step: int) -> None:
    """Write what is there when a process is killed between two files of a checkpoint."""
    with contextlib.suppress(KeyError), folder.new_checkpoint(step, 2) as path:
        name = path.name
        raise KeyError("only its name is needed")
    left = folder.root / "checkpoints" / name
    (left / "actor").mkdir(parents=True)
    (left / "actor" / "left").write_text("x")
    (left / "left.json").write_text("{}")


def _found(folder: RunFolder, steps: list[int], after: str) -> None:
    names = [path.name for path in folder.checkpoints()]
    wanted = [f"step-{step:06d}" for step in steps]
    expect(names == wanted, f"after {after} the checkpoints are {names}, complete are {wanted}")
    latest = folder.latest()
    name = latest.name if latest else None
    expect(name == (wanted[-1] if wanted else None), f"after {after} the newest checkpoint is {name}")


@contextlib.asynccontextmanager
async def _owner(bench: LoopBench, root: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start a process that asks for a folder; yield it with its answer, and end it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _OWNER, str(root), stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    try:
        word = await bench.soon(process.stdout.readline(), "a process that asks for a folder", within_s=60.0)
        yield process, word.decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
