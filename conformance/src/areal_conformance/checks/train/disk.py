"""Saving where it cannot be saved: a StorageError, nothing left behind, and what was there before still there.

Knows: files in the way of folders, and disks that are full.
Does not know: what is in the files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.oracles.train_compare import raises, same
from areal_conformance.oracles.train_spoil import files_at_most, tree
from areal_conformance.outcome import expect
from areal_core.contract.errors import StorageError
from areal_core.contract.train import TrainEngine
from areal_torch.testing.objectives import PolicyGradient

WEIGHTS = "train#areal_core.contract.train.TrainEngine.save_weights"
STATE = "train#areal_core.contract.train.TrainEngine.save_state"


def in_the_way(bench: TrainBench, engine: TrainEngine, save: Callable[[Path], None]) -> None:
    """Expect a StorageError where a file stands in the place of a parent folder, and where nothing can be made."""
    obstacle = bench.folder / "obstacle"
    obstacle.write_text("a file")
    before = tree(bench.folder)
    for path in (obstacle / "here", obstacle / "deep" / "er"):
        raises(StorageError, f"saving below the file {obstacle.name}", partial(save, path))
        expect(tree(bench.folder) == before, f"after the error the folder holds {sorted(tree(bench.folder))}")


def full_disk(bench: TrainBench, save: Callable[[Path], None], load: Callable[[Path], None]) -> None:
    """Expect a StorageError at whatever byte the disk is full, nothing left, and the folder before still whole."""
    old = bench.folder / "place" / "old"
    old.parent.mkdir()
    save(old)
    sizes = [path.stat().st_size for path in old.rglob("*") if path.is_file()]
    before = tree(old.parent)
    for limit in (0, 100, max(sizes) // 2, max(sizes) - 1):
        for path in (old, old.with_name("new")):
            with files_at_most(limit):
                raises(StorageError, f"saving where no file can have more than {limit} bytes", partial(save, path))
            left = sorted(set(tree(old.parent)) ^ set(before))
            expect(not left, f"after the error at {limit} bytes, files have come or gone: {', '.join(left[:4])}")
            expect(tree(old.parent) == before, f"after the error at {limit} bytes, what was saved before has changed")
    load(old)
    save(old.with_name("new"))
    load(old.with_name("new"))


@check("train.disk.weights_in_the_way", level=Level.SINGLE, law=10, spec=WEIGHTS)
def weights_in_the_way(bench: TrainBench) -> None:
    """Weights that cannot be saved are a StorageError; nothing is left behind, and the engine goes on."""
    with bench.engine() as engine:
        before = bench.sent(engine)
        in_the_way(bench, engine, engine.save_weights)
        same("sent after the errors", bench.sent(engine), before)


@check("train.disk.state_in_the_way", level=Level.SINGLE, law=10, spec=STATE)
def state_in_the_way(bench: TrainBench) -> None:
    """A state that cannot be saved is a StorageError; nothing is left behind, and the engine goes on."""
    with bench.engine() as engine:
        before = bench.sent(engine)
        in_the_way(bench, engine, engine.save_state)
        same("sent after the errors", bench.sent(engine), before)


@check("train.disk.weights_full", level=Level.FAULTS, law=10, spec=WEIGHTS)
def weights_full(bench: TrainBench) -> None:
    """On a full disk `save_weights` raises a StorageError, leaves nothing, and keeps the folder saved before."""
    with bench.engine(model=bench.model(hidden=32)) as engine:
        held = bench.witnessed(engine)
        full_disk(bench, engine.save_weights, lambda path: same("a folder saved", read_folder(path), held))


@check("train.disk.state_full", level=Level.FAULTS, law=4, spec=STATE)
def state_full(bench: TrainBench) -> None:
    """On a full disk `save_state` raises a StorageError, leaves nothing, and keeps the state saved before."""
    with bench.engine(model=bench.model(hidden=32)) as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        held = bench.witnessed(engine)

        def load(path: Path) -> None:
            engine.load_state(path)
            same("weights loaded from a state saved", bench.witnessed(engine), held)

        full_disk(bench, engine.save_state, load)
        engine.train_step(bench.batch(), PolicyGradient())
