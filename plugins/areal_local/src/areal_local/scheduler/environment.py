"""What a worker process is given: an interpreter, an environment, its own devices, its own number of threads.

Knows: the variables that have to stand before anything is imported.
Does not know: how processes start.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

from areal_core.contract.errors import ResourceError
from areal_core.contract.scheduler import Job

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def interpreter(job: Job) -> str:
    """Return the interpreter of a job's workers: its own, or the one that runs the controller.

    Raises:
        ResourceError: there is no such program.
    """
    if job.python is None:
        return sys.executable
    found = shutil.which(job.python)
    if found is None:
        raise ResourceError(
            f"there is not an interpreter {job.python!r} for role {job.role!r}",
            why="it is neither an executable file nor on the PATH",
            fix="name the python of an environment with areal-local and the engine installed: /path/to/venv/bin/python",
        )
    return found


def worker_environment(job: Job, own_devices: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the worker's threads and devices set, and the job's own variables over all.

    The interface of its address is the worker's own to find (`areal_worker.network`).
    """
    threads = {name: str(job.cpus_per_worker) for name in _THREADS}
    return {**environ, **threads, "PYTHONUNBUFFERED": "1", **own_devices, **job.env}
