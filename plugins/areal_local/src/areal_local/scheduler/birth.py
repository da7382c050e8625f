"""A worker process of this machine is born: its keys, what it is told, its environment, its log.

Knows: what has to be there before a worker can answer.
Does not know: who asked for it (`local_scheduler`), or what becomes of it (`local_worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import zmq

from areal_core.contract.errors import ResourceError, StorageError
from areal_core.contract.scheduler import Job
from areal_local.scheduler.bootstrap import Bootstrap
from areal_local.scheduler.channel import KeyPair
from areal_local.scheduler.local_worker import C, LocalWorker
from areal_local.scheduler.process import WorkerProcess
from areal_worker import schema


def log_name(job: Job, rank: int) -> str:
    """Return the name of a worker's log. Example: `rollout.1-0.log`."""
    return f"{job.role.replace('/', '-')}-{rank}.log"


def start_worker(
    job: Job,
    rank: int,
    client: Callable[[str, str, zmq.Socket[bytes]], C],
    *,
    host: str,
    listen: str,
    controller_key: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    log_path: Path,
) -> LocalWorker[C]:
    """Start the process of one worker; it has not answered yet.

    Args:
        host: the address its handle tells.
        listen: a folder of Unix sockets, an address, or "*" for every interface.
        controller_key: the public key of the only client it admits.
        command: runs its interpreter.

    Raises:
        StorageError: its log cannot be written.
        ResourceError: the command cannot be run.
    """
    keys, name = KeyPair.generate(), f"{job.role}/{rank}"
    bootstrap = Bootstrap(
        worker=name,
        engine_role=job.engine_role,
        backend=job.backend,
        imports=job.imports,
        host=host,
        listen=listen,
        server_public=keys.public,
        server_secret=keys.secret,
        client_public=controller_key,
        schema=schema.fingerprint(),
    )
    try:
        process = WorkerProcess(command, bootstrap, environ, log_path)
    except OSError as exc:
        if exc.filename == str(log_path):
            raise StorageError(f"the log {log_path} cannot be written", why=str(exc)) from exc
        raise ResourceError(
            f"worker {name} cannot be started with {command[-1]}", why=str(exc), fix="check the interpreter's path"
        ) from exc
    at = host if listen == "*" else listen
    return LocalWorker(job.role, rank, process, keys.public, host, at, client)
