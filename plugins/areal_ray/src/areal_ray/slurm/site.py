"""What Slurm is asked on the machine a job is submitted from: sbatch, sinfo, squeue, scontrol, scancel.

Knows: these commands, and their answers as errors of ours.
Does not know: what a job does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from areal_core.contract.errors import ConfigError, ResourceError

_DEADLINE_S = 60.0
"""Of one command; a controller that is busy answers within some seconds."""
_WAITING = ("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "RESIZING", "SIGNALING", "SUSPENDED", "STOPPED")
_ALIVE = ("RUNNING", "COMPLETING", "STAGE_OUT", *_WAITING)


@frozen(kw_only=True)
class JobState:
    """Where a job is. Example: JobState(name="COMPLETED", exit_code=0)"""

    name: str
    exit_code: int
    """Of the job, once it ended; 128 + N if the signal N ended it."""

    @property
    def ended(self) -> bool:
        """Tell whether it will not run again by itself."""
        return self.name not in _ALIVE

    @property
    def started(self) -> bool:
        """Tell whether its script began."""
        return self.name not in _WAITING


def check_site(partition: str) -> None:
    """Refuse a machine without Slurm, or a partition it does not have.

    Raises:
        ResourceError: no sbatch here, or no controller answers.
        ConfigError: no such partition.
    """
    if shutil.which("sbatch") is None:
        raise ResourceError(
            "this machine cannot submit jobs to Slurm",
            why="there is no sbatch on the PATH",
            fix="run the command on a login node of the cluster; --dry-run writes the script anywhere",
        )
    there = sorted(set(_ask(["sinfo", "--noheader", "--format=%R"]).split()))
    if partition and (unknown := sorted(set(partition.split(",")) - set(there))):
        raise ConfigError(
            f"Slurm has no partition {', '.join(unknown)}",
            why=f"partitions are {', '.join(there)}",
            fix="--partition NAME",
        )


def hosts() -> set[str]:
    """Return the machines that the nodes are, by their names."""
    return set(_ask(["sinfo", "--noheader", "--format=%n"]).split())


def check_script(script: str) -> None:
    """Have Slurm judge a script without submitting it. Raises ConfigError: it would not take it, in its own words."""
    done = _run(["sbatch", "--test-only"], script)
    if done.returncode:
        raise ConfigError(
            "Slurm does not take the job",
            why=_words_of(done.stderr),
            fix="see what the site has: sinfo, sacctmgr show assoc",
        )


def submit(script: Path) -> int:
    """Submit a script and return the job's number. Raises ResourceError: Slurm did not take it."""
    told = _ask(["sbatch", "--parsable", str(script)])
    return int(told.partition(";")[0])


def state_of(job: int) -> JobState:
    """Return the state of a job. Raises ResourceError: Slurm does not answer, or has forgotten it."""
    told = _ask(["scontrol", "show", "job", str(job), "--oneliner"])
    name, code = re.search(r"\bJobState=(\w+)", told), re.search(r"\bExitCode=(\d+):(\d+)", told)
    if name is None or code is None:
        raise ResourceError(f"Slurm's answer about job {job} is not understood", why=told.strip()[:200])
    status, number = int(code[1]), int(code[2])
    if name[1] not in ("COMPLETED", *_ALIVE) and not (status or number):
        status = 1  # a job that was cancelled, or ran out of its time, before it had a code
    return JobState(name=name[1], exit_code=status or (128 + number if number else 0))


def cancel(job: int) -> None:
    """End a job. Raises ResourceError: Slurm does not answer."""
    _ask(["scancel", str(job)])


def _ask(command: Sequence[str]) -> str:
    done = _run(command)
    if done.returncode:
        raise ResourceError(
            f"{command[0]} failed", why=_words_of(done.stderr), fix="look whether the controller answers: scontrol ping"
        )
    return done.stdout


def _run(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"{command[0]} did not answer within {_DEADLINE_S:g} s",
            why="the controller of Slurm is busy, or down",
            fix="look whether it answers: scontrol ping",
        ) from None


def _words_of(text: str) -> str:
    """Return what a command of Slurm complained about, without its name on every line."""
    lines = (re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "it said nothing"
