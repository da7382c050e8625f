"""`areal job submit run.yaml`: a run as a job of a Ray cluster, followed from here.

Knows: arguments, what is uploaded, what a user is told.
Does not know: planning (`elsewhere`), Ray's API (`jobs`), how the run is kept alive there (`again`).
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from areal_core.contract.errors import ConfigError
from areal_ray.elsewhere import RunElsewhere, plan_elsewhere
from areal_ray.job.jobs import Jobs

At = Annotated[str, Parameter(help="The cluster's dashboard, http://HOST:8265; default: RAY_API_SERVER_ADDRESS.")]
INTERRUPTED = 130
_AGAIN = "areal_ray.job.again"

app = App(name="job", help="Hand runs to a Ray cluster, and follow them.", help_format="plaintext")
console = Console(highlight=False, markup=False, soft_wrap=True)


@app.command
def submit(
    config: Path,
    *overrides: str,
    address: At = "",
    restarts: Annotated[int, Parameter(help="How often a run whose controller was killed goes on by itself.")] = 3,
    upload: Annotated[
        Path | None, Parameter(help="A folder to upload, from which the run starts; else the run file alone.")
    ] = None,
    python: Annotated[str, Parameter(help="The cluster's interpreter that has areal, a name or a path.")] = "python",
    follow: Annotated[bool, Parameter(help="Print the log until the run ends, and return its exit code.")] = True,
) -> int:
    """Plan a run here, hand it to a cluster, and follow it there.

    The run folder, the model and the data are paths of the cluster: on a disk that its machines share. A run that the
    run folder holds is gone on with.

    Parameters
    ----------
    config:
        The run's yaml file.
    overrides:
        Values that replace those of the file: rollout.max_staleness=0 actor.backend=fsdp:d16
    """
    if restarts < 0:
        raise ConfigError(f"--restarts {restarts}", why="it is 0 or more", fix="for example --restarts 3")
    run = plan_elsewhere(config, overrides)
    console.print(run.told())
    jobs = Jobs.at(address)
    with tempfile.TemporaryDirectory() as made:
        folder = _uploaded(run, upload, Path(made))
        words = [python, "-m", _AGAIN, str(restarts), str(run.folder.root.absolute()), *_words(run, config, upload)]
        job = jobs.submit(shlex.join(words), folder, run.name)
    console.print(f"job {job} on {jobs.address}, its run folder: {run.folder.root}")
    if follow:
        return _followed(jobs, job)
    console.print(f"follow it: areal job follow {job}    end it: areal job stop {job}")
    return 0


@app.command
def follow(job: str, *, address: At = "") -> int:
    """Print a job's log until it ends, and return its exit code."""
    return _followed(Jobs.at(address), job)


@app.command
def stop(job: str, *, address: At = "") -> int:
    """Have a job save its state and end."""
    Jobs.at(address).stop(job)
    console.print(f"job {job} was asked to end")
    return 0


def _followed(jobs: Jobs, job: str) -> int:
    try:
        return jobs.follow(job, _written)
    except KeyboardInterrupt:
        console.print(f"\njob {job} goes on; follow it: areal job follow {job}    end it: areal job stop {job}")
        return INTERRUPTED


def _uploaded(run: RunElsewhere, upload: Path | None, made: Path) -> Path:
    """Return the folder to upload: the user's, or one with the run file and what it imports."""
    if upload is not None:
        if not run.file.resolve().is_relative_to(upload.resolve()):
            raise ConfigError(
                f"{run.file} is not in {upload}", why="that folder is what the cluster sees", fix="put the file there"
            )
        return upload
    shutil.copyfile(run.file, made / "run.yaml")
    for file in run.imports:
        if file.is_absolute():
            continue  # a path of the cluster
        (made / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, made / file)
    return made


def _words(run: RunElsewhere, config: Path, upload: Path | None) -> list[str]:
    """Return the run file, as it is called in the folder that was uploaded, and overrides."""
    file = "run.yaml" if upload is None else str(config.resolve().relative_to(upload.resolve()))
    return [file, *run.overrides, "scheduler.backend=ray"]


def _written(part: str) -> None:
    sys.stdout.write(part)
    sys.stdout.flush()
