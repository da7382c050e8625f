"""`areal slurm run.yaml --nodes 2`: a run as a job of Slurm.

Knows: arguments, the order of checks, what a user is told.
Does not know: planning (`elsewhere`), the script (`script`), Slurm's commands (`site`).
"""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from areal_core.contract.errors import ConfigError, StorageError
from areal_ray.elsewhere import Nodes, RunElsewhere, plan_elsewhere
from areal_ray.slurm import site
from areal_ray.slurm.following import Following
from areal_ray.slurm.request import Request
from areal_ray.slurm.script import batch_script

_OF_ONE_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/")
"""Where every machine has files of its own."""


def slurm_command(
    config: Path,
    *overrides: str,
    nodes: Annotated[int, Parameter(help="Nodes of the job.")],
    gpus_per_node: Annotated[int, Parameter(help="Accelerators of each node.")] = 0,
    cpus_per_node: Annotated[int, Parameter(help="Processors of each node; 0 takes nodes as a whole.")] = 0,
    partition: str = "",
    account: str = "",
    time: Annotated[str, Parameter(help="The job's time limit, in Slurm's words: 12:00:00.")] = "",
    sbatch: Annotated[list[str] | None, Parameter(help="Another option of sbatch: qos=high, mem=0.")] = None,
    requeue: Annotated[
        bool, Parameter(help="Go back to the queue and on from there after preemption or the time limit.")
    ] = False,
    notice: Annotated[int, Parameter(help="Seconds before the time limit at which the run saves its state.")] = 120,
    container_image: Annotated[str, Parameter(help="Run in containers of this image, with pyxis.")] = "",
    apptainer: Annotated[str, Parameter(help="Run in containers of this image, with apptainer.")] = "",
    container_option: Annotated[
        list[str] | None,
        Parameter(help="An option of pyxis or of apptainer exec: --bind=/data.", allow_leading_hyphen=True),
    ] = None,
    resume: Annotated[bool, Parameter(help="Continue the run that the run folder holds.")] = False,
    assume: Annotated[str, Parameter(help="What one node has, such as cuda:8x80GB; tells what cannot fit.")] = "",
    dry_run: Annotated[
        bool,
        Parameter(name=["--dry-run", "--print"], help="Print the script and submit nothing; the plan goes to stderr."),
    ] = False,
    follow: Annotated[bool, Parameter(help="Print the job's log until it ends, and return its exit code.")] = False,
) -> int:
    """Run a yaml file as a job of Slurm: a Ray cluster on its nodes, and the run on it.

    Parameters
    ----------
    config:
        The run's yaml file.
    overrides:
        Values that replace those of the file: rollout.max_staleness=0 actor.backend=fsdp:d16
    """
    given = Nodes.of(nodes, gpus_per_node, cpus_per_node, assume)
    request = Request(
        nodes=nodes,
        gpus_per_node=given.gpus,
        cpus_per_node=cpus_per_node,
        partition=partition,
        account=account,
        time=time,
        requeue=requeue,
        notice_s=notice,
        extra=tuple(sbatch or ()),
        container_image=container_image,
        apptainer=apptainer,
        container_options=tuple(container_option or ()),
    )
    console = Console(stderr=dry_run, highlight=False, markup=False, soft_wrap=True)
    run = plan_elsewhere(config, overrides, given.kind).on(given)
    console.print(run.told())
    _check_state(run, resume=resume)
    if dry_run:
        sys.stdout.write(batch_script(run, request, config, goes_on=resume))
        return 0
    site.check_site(partition)
    _check_shared(run)
    site.check_script(batch_script(run, request, config, goes_on=resume))
    job, log = _submitted(run, request, goes_on=resume)
    console.print(f"job {job}, its log: {log}")
    if follow:
        return Following(job=job, log=log, state=site.state_of, cancel=site.cancel).until_end()
    console.print(f"follow it: tail -F {log}    see it: squeue --job {job}    end it: scancel {job}")
    return 0


def _check_state(run: RunElsewhere, *, resume: bool) -> None:
    """Refuse a run folder whose state does not fit with what was asked: the job would end at once."""
    folder = run.folder
    holds = bool(folder.how_to_go_on())
    if resume and not holds:
        raise ConfigError(
            f"run folder {folder.root} has nothing to resume", why="no run has begun there", fix="leave out --resume"
        )
    if holds and not resume:
        raise ConfigError(
            f"run folder {folder.root} already holds a run",
            why="its metrics and checkpoints would be mixed up",
            fix="continue it with --resume, or choose another folder with out=DIR",
        )


def _check_shared(run: RunElsewhere) -> None:
    """Refuse a run folder that is known to be another one on every node; the job looks for itself too."""
    root = run.folder.root.resolve()
    if f"{root}/".startswith(_OF_ONE_NODE) and site.hosts() != {socket.gethostname()}:
        raise ConfigError(
            f"run folder {root} is not shared",
            why="every node has files of its own there, and all of them write into the run's",
            fix="choose a folder on a disk that all nodes share, with out=DIR",
        )


def _submitted(run: RunElsewhere, request: Request, *, goes_on: bool) -> tuple[int, Path]:
    """Write what the job is made of, submit it, and return its number and its log."""
    folder = run.folder.root / "slurm"
    try:
        script = _written(run, request, folder, goes_on=goes_on)
    except OSError as error:
        raise StorageError(
            f"run folder {run.folder.root} cannot be written", why=str(error), fix="choose another folder with out=DIR"
        ) from None
    job = site.submit(script)
    return job, folder / f"{job}.log"


def _written(run: RunElsewhere, request: Request, folder: Path, *, goes_on: bool) -> Path:
    """Write the script and a copy of the yaml, which may change until the job starts; return the script."""
    run.folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    own = Path(mkdtemp(prefix="job-", dir=folder))  # other jobs of the run may wait too
    copy, script = own / "run.yaml", own / "job.sh"
    shutil.copyfile(run.file, copy)
    script.write_text(batch_script(run, request, copy, goes_on=goes_on), encoding="utf-8")
    return script
