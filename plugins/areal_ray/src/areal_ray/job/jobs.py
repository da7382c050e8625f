"""Jobs of one Ray cluster: submitted, followed, stopped.

Knows: Ray's client of its job API.
Does not know: what a job runs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from attrs import frozen
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from areal_core.contract.errors import ConfigError, ResourceError

T = TypeVar("T")
ADDRESS = "RAY_API_SERVER_ADDRESS"
_PREFERRED = "RAY_ADDRESS"
_LOOK_S = 0.5
_NOT_YET, _PATIENCE_S = "try again later", 180.0
"""What a cluster says that has only just begun, and how long it may."""


@frozen
class Jobs:
    """A cluster's jobs."""

    address: str
    _client: JobSubmissionClient

    @classmethod
    def at(cls, address: str) -> Jobs:
        """Return the jobs of the cluster whose dashboard is there.

        Raises:
            ConfigError: nobody said where.
            ResourceError: nobody answers there, or does not know us.
        """
        address = address or os.environ.get(ADDRESS, "")
        if not address:
            raise ConfigError(
                "no cluster is named", why=f"neither --address nor {ADDRESS} is given", fix="--address http://HOST:8265"
            )
        before = os.environ.pop(_PREFERRED, None)  # Ray would take it instead
        try:
            return cls(address, _asked(lambda: JobSubmissionClient(address), address))
        finally:
            if before is not None:
                os.environ[_PREFERRED] = before

    def submit(self, entry: str, folder: Path, name: str) -> str:
        """Upload a folder and run a command in it; return the job's id.

        Raises:
            ResourceError: the cluster does not take it.
        """
        environment = {"working_dir": str(folder)}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return _asked(
                    lambda: self._client.submit_job(
                        entrypoint=entry, runtime_env=environment, metadata={"areal_run": name}
                    ),
                    self.address,
                )
            except ResourceError as error:
                if _NOT_YET not in error.why or time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_S)

    def stop(self, job: str) -> None:
        """Ask a job to end.

        Raises:
            ResourceError: there is none of that id.
        """
        _asked(lambda: self._client.stop_job(job), self.address)

    def follow(self, job: str, write: Callable[[str], None]) -> int:
        """Write a job's log as it grows; return its exit code once it has ended.

        Raises:
            ResourceError: there is none of that id, or the cluster is gone.
        """
        return asyncio.run(self._follow(job, write))

    async def _follow(self, job: str, write: Callable[[str], None]) -> int:
        read = 0
        while True:
            info = await asyncio.to_thread(_asked, lambda: self._client.get_job_info(job), self.address)
            log = await asyncio.to_thread(_asked, lambda: self._client.get_job_logs(job), self.address)
            write(log[read:])
            read = len(log)
            if info.status.is_terminal():
                break
            await asyncio.sleep(_LOOK_S)
        write(f"job {job} {info.status.value.lower()}{f': {info.message}' if info.message else ''}\n")
        code = info.driver_exit_code
        return code if code is not None else int(info.status != JobStatus.SUCCEEDED)


def _asked(ask: Callable[[], T], address: str) -> T:
    try:
        return ask()
    except (RuntimeError, ConnectionError, RayError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ResourceError(
            f"the Ray cluster at {address} does not do that",
            why=lines[0] if lines else type(error).__name__,
            fix="check the address (http://HOST:8265), RAY_AUTH_TOKEN, and that Ray has the same version there",
        ) from error
