"""Programs in which a rank dies, does not come, or cannot write.

Knows: how to hurt the process it runs in.
Does not know: what is right; the checks judge.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from areal_conformance.benches.train import read_folder
from areal_conformance.oracles.train_objectives import OBJECTIVES
from areal_conformance.ranks.answers import SHAPES, Rows, error_of, gap, shard, told
from areal_conformance.ranks.bench import OPTIMIZER, RankBench
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output, TrainEngine
from areal_torch.testing.memory_weights import MemorySink

_GAVE_UP = ("timed out", "connection closed by peer", "connection reset by peer")
LIMIT_BYTES = 16 << 10
"""Files may grow to this where the disk is "full": more than an index, less than the weights of a tiny model."""


def killed(
    bench: RankBench, layout: dict[str, int], rows: Rows, *, victim: int, call: str, timeout_s: float
) -> dict[str, Any]:
    """Kill one rank inside a call; tell how the call ended on the others."""
    engine, mine = _stepped(bench, layout, rows, timeout_s)
    bench.share()
    dies = bench.rank == victim
    out: dict[str, Any] = {}
    if call == "train_step":
        out["error"] = error_of(lambda: engine.train_step(mine, OBJECTIVES["dying" if dies else "gain"]()))
    elif call == "forward":
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        out["error"] = error_of(lambda: engine.forward(mine, frozenset({Output.LOGPROBS})))
    else:
        if dies and victim != 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sink = MemorySink(bucket_bytes=1 << 12, spoil=_kill if dies else None)
        out["error"] = error_of(lambda: engine.send_weights(sink if bench.rank == 0 else None, 1))
    engine.close()
    engine.close()
    return out


def stuck(bench: RankBench, layout: dict[str, int], rows: Rows, *, idle: int, timeout_s: float) -> dict[str, Any]:
    """Make a step on all ranks but one, which lives and does nothing."""
    engine, mine = _stepped(bench, layout, rows, timeout_s)
    out: dict[str, Any] = {"error": ["", "", ""]}
    if bench.rank != idle:
        out["error"] = error_of(lambda: engine.train_step(mine, OBJECTIVES["gain"]()))
    bench.share()  # the processes are thrown away: their process group waits for a collective that never ends
    return out


def absent(bench: RankBench, layout: dict[str, int], *, missing: int, timeout_s: float) -> dict[str, Any]:
    """Start all ranks but one; then all of them, in the same processes."""
    bench.timeout_s = timeout_s
    context = bench.rank_context()
    out: dict[str, Any] = {"error": ["", "", ""]}
    if bench.rank != missing:
        engine = bench.build()
        out["error"] = error_of(lambda: engine.start(bench.spec(layout=layout), context))
        engine.close()
    bench.share()
    bench.timeout_s = 60.0
    with bench.engine(layout=layout) as engine:
        out["step"] = told(engine.train_step(bench.batch(SHAPES), OBJECTIVES["gain"]()))
    return out


def disk_full(bench: RankBench, layout: dict[str, int], rows: Rows, *, victim: int, call: str) -> dict[str, Any]:
    """Save twice, the second time with a disk that is full for one rank; then load what is there."""
    path = bench.folder / f"{call}-{victim}-{''.join(layout)}" / "saved"
    path.parent.mkdir(exist_ok=True)
    with bench.engine(layout=layout) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.train_step(mine, OBJECTIVES["gain"]())
        engine.version = 7
        getattr(engine, call)(path)
        saved = bench.sent(engine)
        engine.train_step(mine, OBJECTIVES["gain"]())
        engine.version = 8
        later = bench.sent(engine)
        with full_disk(bench.rank == victim):
            out: dict[str, Any] = {"error": error_of(lambda: getattr(engine, call)(path))}
        bench.share()
        out["left"] = sorted(file.name for file in path.parent.iterdir() if file.name != path.name)
        out["going_on"] = gap(later, bench.sent(engine))
        if call == "save_state":
            engine.load_state(path)
            out["version"] = engine.version
            held = bench.sent(engine)
        else:
            held = read_folder(path) if bench.rank == 0 else {}
        out["step"] = told(engine.train_step(mine, OBJECTIVES["gain"]()))
    out["is_saved"] = gap(saved, held)[0] == 0.0
    out["is_later"] = gap(later, held)[0] == 0.0
    return out


def killed_saving(bench: RankBench, layout: dict[str, int], rows: Rows, *, victim: int, path: str) -> dict[str, Any]:
    """Save a state whole; then again, with one rank killed while it writes."""
    engine, mine = _stepped(bench, layout, rows, 5.0)
    engine.version = 7
    engine.save_state(Path(path))
    expected = told(engine.train_step(mine, OBJECTIVES["gain"]()))
    engine.version = 8
    bench.share()
    if bench.rank == victim:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        with full_disk(True):
            engine.save_state(Path(path))
        return {"survived": True}
    return {"error": error_of(lambda: engine.save_state(Path(path))), "expected": expected}


def load_after(bench: RankBench, layout: dict[str, int], rows: Rows, *, path: str) -> dict[str, Any]:
    """Load what ranks that are dead now have left, and make the next step."""
    with bench.engine(layout=layout) as engine:
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.load_state(Path(path))
        return {"version": engine.version, "step": told(engine.train_step(mine, OBJECTIVES["gain"]()))}


@contextlib.contextmanager
def full_disk(applies: bool) -> Iterator[None]:
    """Let no file of this process grow beyond LIMIT_BYTES, as on a disk without room."""
    if not applies:
        yield
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _stepped(bench: RankBench, layout: dict[str, int], rows: Rows, timeout_s: float) -> tuple[TrainEngine, Batch]:
    """Start an engine nobody closes, and make a step; whoever is told to wait so briefly is late on a busy machine."""
    bench.timeout_s = timeout_s
    engine: TrainEngine = bench.build()
    try:
        bench.info = engine.start(bench.spec(layout=layout, optimizer=OPTIMIZER), bench.rank_context())
        mine = shard(bench, bench.batch(SHAPES), rows)
        engine.train_step(mine, OBJECTIVES["gain"]())
    except Exception as error:
        if gave_up(error):
            raise TimeoutError(f"ranks that wait {timeout_s:g} s did not start and step: {error}") from error
        raise
    return engine, mine


def gave_up(error: Exception) -> bool:
    """Whether a limit of a collective's own passed, here or on the peer: what gloo and stores raise has no type."""
    told = f"{error} {error.__cause__}".lower()
    return any(words in told for words in _GAVE_UP)


def _kill(name: str, tensor: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return tensor
