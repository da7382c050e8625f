"""Saves whose process is killed: the folder before stays whole, and nothing of the killed one gets into the next.

Knows: processes that end in the middle of a file.
Does not know: under which name a save begins.
"""

from __future__ import annotations

import os
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, Row, family
from areal_conformance.checks.train.save import SPEC, STATE
from areal_conformance.deadline import Deadline
from areal_conformance.oracles.spoil import tree
from areal_conformance.oracles.train_compare import same
from areal_conformance.outcome import Exempt, expect
from areal_core.contract.device import CPU
from areal_core.contract.train import TrainEngine
from areal_torch.testing.objectives import PolicyGradient

_STRANGERS = ("model-00009-of-00009.safetensors", "rank-0009.safetensors", "adapter/adapter_model.safetensors")
"""Files of a save that had more of them: of a larger world, of another policy."""
_WAIT_S = 10.0


@family(
    "train.disk.{what}_killed",
    {
        "weights": Row("A save of weights", "save_weights", spec=SPEC),
        "state": Row("A save of a state", "save_state", spec=STATE),
    },
    level=Level.FAULTS,
    law=10,
)
def killed(bench: TrainBench, call: str) -> None:
    """{...} that is killed half way leaves the folder before whole, and none of its files to the next save."""
    if bench.target.locator.device != CPU:
        raise Exempt("a process that has an accelerator has no copy that could be killed in its place")
    place = bench.folder / "place"
    place.mkdir()
    with bench.engine(model=bench.model(hidden=32)) as engine:
        save: Callable[[Path], None] = getattr(engine, call)
        save(place / "it")
        before = tree(place)
        half = max(path.stat().st_size for path in place.rglob("*") if path.is_file()) // 2
        engine.train_step(bench.batch(), PolicyGradient())
        for path in (place / "it", place / "new"):
            known = {*place.iterdir()}
            if not _killed_in_the_middle(partial(save, path), half, _WAIT_S * bench.target.adapter.patience):
                raise Exempt(f"{call} in a copy of this process was not to be killed: others write, or it cannot")
            now = tree(place)
            lost = sorted(name for name in before if now.get(name) != before[name])
            expect(not lost, f"after a save to {path.name!r} was killed, the folder before is not whole: {lost[:4]}")
            expect(path.name == "it" or not path.exists(), f"a save to {path.name!r} was killed, and a folder is there")
            for left in {*place.iterdir()} - known:
                _leave_more(left, tree(place / "it"))
            save(path)
            odd = [name for name in _STRANGERS if (path / name).exists()]
            expect(not odd, f"the save after a killed one has files that lay in what that one left: {odd}")
            _expect_whole(bench, engine, path, call)
            before = {"it": b"/", **{f"it/{name}": data for name, data in tree(place / "it").items()}}
        engine.train_step(bench.batch(), PolicyGradient())


def _leave_more(left: Path, files: Iterable[str]) -> None:
    """Put files beside those that a killed save left: strangers, and begun ones of each name that a save writes."""
    if left.is_dir():
        for name in (*_STRANGERS, *files):
            if not (left / name).exists():
                (left / name).parent.mkdir(parents=True, exist_ok=True)
                (left / name).write_bytes(b"of another save")


def _expect_whole(bench: TrainBench, engine: TrainEngine, path: Path, call: str) -> None:
    """Expect what was saved to be what the engine holds."""
    if call == "save_weights":
        same("the folder saved after a killed save", read_folder(path), bench.sent(engine))
        return
    held = bench.witnessed(engine)
    engine.train_step(bench.batch(seed=7), PolicyGradient())
    engine.load_state(path)
    same("weights of the state saved after a killed save", bench.witnessed(engine), held)


def _killed_in_the_middle(save: Callable[[], None], num_bytes: int, wait_s: float) -> bool:
    """Save in a copy of this process, which dies where a file has so many bytes; killed too if it does not end.

    Returns whether it died of the file, and not by a signal of somebody else or at its end.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: the copy needs none of them, or is killed
        copy = os.fork()
    if copy == 0:
        _save_and_die(save, num_bytes)
    deadline = Deadline(wait_s)
    while (ended := os.waitpid(copy, os.WNOHANG)) == (0, 0):
        if deadline.left() <= 0:
            os.kill(copy, signal.SIGKILL)
        time.sleep(0.01)
    return os.WIFSIGNALED(ended[1]) and os.WTERMSIG(ended[1]) == signal.SIGXFSZ


def _save_and_die(save: Callable[[], None], num_bytes: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        save()
    finally:
        os._exit(0)
