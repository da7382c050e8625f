"""What a scheduler of worker processes does with every job: look whether it can be one, and wait for all or none.

Knows: a job's fields, deadlines, and what late workers have in their logs.
Does not know: where processes run, or how they start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine, Sequence
from pathlib import Path
from typing import Any

from areal_core.contract.errors import ConfigError, StorageError, WorkerTimeout
from areal_core.contract.scheduler import Job, WorkerStatus
from areal_core.plugins.claims import refuse_unclaimed
from areal_core.plugins.manifest import Manifest
from areal_local.scheduler.process import log_tail
from areal_worker.service import HOSTS


def check_job(job: Job, manifest: Manifest, running: Container[str]) -> None:
    """Refuse what can be no job.

    Raises:
        CapabilityError: it asks for what the manifest does not claim.
        ConfigError: its role is running, no worker hosts its engines, or it is of no workers.
    """
    refuse_unclaimed(job, manifest)
    if job.role in running:
        raise ConfigError(f"role {job.role!r} is already running", fix="cancel it first, or choose another name")
    if job.engine_role not in HOSTS:
        raise ConfigError(f"no worker hosts {job.engine_role!r} engines", why=f"these are hosted: {', '.join(HOSTS)}")
    if job.num_workers < 1:
        raise ConfigError(f"role {job.role!r} asks for {job.num_workers} workers", fix="ask for at least one")


def made_folder(log_dir: str) -> Path:
    """Return the folder of logs, absolute, made if it was missing.

    Raises:
        StorageError: it cannot be made.
    """
    folder = Path(log_dir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StorageError(f"the log folder {folder} cannot be made", why=str(exc)) from exc
    return folder


async def all_started(
    starts: Sequence[Coroutine[Any, Any, None]], statuses: Sequence[WorkerStatus], timeout_s: float
) -> None:
    """Wait until every worker has started; the first that fails, or the deadline, ends the wait. Any: asyncio's.

    Args:
        starts: one for each worker.
        statuses: of the same workers: who they are and where they log.

    Raises:
        WorkerTimeout: some did not within the time; names them, with the last lines of the first one's log.
        ArealError: what the start of one raised.
    """
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        late = [status for status, task in zip(statuses, tasks, strict=True) if not task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if late:
        raise WorkerTimeout(
            f"{', '.join(status.id for status in late)} did not start within {timeout_s:g} s",
            why="\n".join(log_tail(Path(late[0].log_path))) or "nothing was written to its log",
            fix=f"read {late[0].log_path}, or raise scheduler.start_timeout_s",
        )
