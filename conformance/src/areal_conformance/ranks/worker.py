"""`python -m areal_conformance.ranks.worker DESCRIPTOR`: a fork server, and the ranks it forks.

The fork server imports torch and transformers once and computes nothing, so a fork of it is a rank within milliseconds,
also after a gang was killed. Ranks die with the fork server, the fork server with the socket its parent holds.

Knows: forking, log files, how a program is found and run, how its end is told.
Does not know: who starts it (`rank_pool.fork_server`), or what programs do.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from areal_conformance.deadline import of_time
from areal_conformance.outcome import HarnessError, Inconclusive, Violation
from areal_conformance.rank_pool import wire
from areal_worker.watchdog import die_with_parent

_WARM = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "tensordict",
    "safetensors.torch",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "areal_torch.testing.batches",
    "areal_torch.testing.memory_weights",
    "areal_torch.testing.models",
    "areal_conformance.ranks.bench",
)
"""Imported before the first fork: what nearly every rank needs, and takes seconds."""


_warmed: set[str] = set()


def main() -> None:
    """Serve the parent at the descriptor given until it is gone."""
    parent = socket.socket(fileno=int(sys.argv[1]))
    for module in _WARM:
        with contextlib.suppress(ImportError):  # a backend of another engine needs neither; its own import will tell
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    wire.send(parent, {"ready": os.getpid()})
    children: set[int] = set()
    try:
        while True:
            _answer(parent, children)
    except wire.Gone:
        pass
    finally:
        _end(children)
        os._exit(0)


def _answer(parent: socket.socket, children: set[int]) -> None:
    """Fork one rank, or end some. A rank's end of its socket comes along with the byte that asks for it."""
    data, ancillary, _, _ = parent.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
    if not data:
        raise wire.Gone("the parent has ended")
    if data == b"k":
        told = wire.receive(parent)
        gone = children & set(told["pids"])
        _end(gone)
        children -= gone
        wire.send(parent, {"ended": sorted(gone)})
        return
    descriptors = array.array("i")
    descriptors.frombytes(ancillary[0][2])
    order = wire.receive(parent)
    if order["warm"] and order["warm"] not in _warmed:
        _warmed.add(order["warm"])
        module, _, name = order["warm"].partition(":")
        with contextlib.suppress(Exception):  # the rank will meet it again, and can tell
            getattr(importlib.import_module(module), name)()
        gc.freeze()
    child = os.fork()
    if child == 0:
        parent.close()
        _be_rank(socket.socket(fileno=descriptors[0]), Path(order["log"]))
    os.close(descriptors[0])
    children.add(child)
    wire.send(parent, {"pid": child})


def _end(children: set[int]) -> None:
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _be_rank(connection: socket.socket, log: Path) -> NoReturn:
    """Run programs until the parent closes the socket; never returns into the fork server's frames."""
    try:
        die_with_parent()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        kept: dict[str, Any] = {}
        while True:
            wire.send(connection, _run(connection, wire.receive(connection), kept))
    except wire.Gone:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)


def _run(connection: socket.socket, order: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Run one program and tell how it ended."""
    from areal_conformance.ranks.bench import RankBench

    try:
        bench = RankBench(connection, order, kept)
        module, _, name = str(order["program"]).partition(":")
        program = getattr(importlib.import_module(module), name)
        result = program(bench, **order["arguments"])
        return {"done": result, "clean": bench.is_clean()}
    except wire.Gone:
        raise
    except BaseException as error:
        traceback.print_exc()
        return {"error": _told(error), "clean": False}


def _told(error: BaseException) -> dict[str, str]:
    kinds: dict[type[BaseException], str] = {
        Violation: "violation",
        Inconclusive: "inconclusive",
        HarnessError: "harness",
        wire.Abandoned: "abandoned",
    }
    kind = next((word for family, word in kinds.items() if isinstance(error, family)), "raised")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    if kind in ("violation", "raised") and any(of_time(error)):
        kind = "late"
    text = str(error) if isinstance(error, tuple(kinds)) else f"{type(error).__name__}: {error}{place}"
    law = error.law if isinstance(error, Violation) and error.law is not None else ""
    return {"kind": kind, "text": text, "law": str(law)}


if __name__ == "__main__":
    main()
