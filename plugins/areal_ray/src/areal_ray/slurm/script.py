"""The batch script of a run, from the one template `job.sh`.

Knows: quoting for bash and for sbatch, how containers are started.
Does not know: what the script does; it says so itself.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from areal_ray.elsewhere import RunElsewhere
from areal_ray.slurm.request import Request

_MOUNTS = "--container-mounts="
_PLACE = re.compile(r"@([A-Z_]+)@")


def batch_script(run: RunElsewhere, request: Request, run_file: Path, *, goes_on: bool) -> str:
    """Return the script.

    Args:
        run_file: the yaml the job reads.
        goes_on: with what the run folder holds, from the first time on.

    Raises:
        ConfigError: a value cannot stand in a script.
    """
    folder = run.folder.root
    log = str(folder / "slurm").replace("%", "%%") + "/%j.log"
    values = {
        "DIRECTIVES": "\n".join(f"#SBATCH --{option}" for option in request.options(run.name, log)),
        "RUN_FILE": shlex.quote(str(run_file.absolute())),
        "OVERRIDES": _words(run.overrides),
        "RUN_FOLDER": shlex.quote(str(folder)),
        "GOES_ON": str(int(goes_on)),
        "REQUEUE": str(int(request.requeue)),
        "NOTICE": str(request.notice_s),
        "STEP": _words(_step(run, request)),
        "INSIDE": _words(_inside(run, request)),
        "PROGRAMS": ""
        if request.container_image or request.apptainer
        else shlex.quote(str(Path(sys.executable).parent)),
    }
    template = files(__package__).joinpath("job.sh").read_text(encoding="utf-8")
    return _PLACE.sub(lambda found: values[found[1]], template)


def _words(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def _step(run: RunElsewhere, request: Request) -> list[str]:
    """Return the options by which srun starts containers, with pyxis."""
    if not request.container_image:
        return []
    mounts = [f"{path}:{path}" for path in _shared(run)]
    mounts += [each.removeprefix(_MOUNTS) for each in request.container_options if each.startswith(_MOUNTS)]
    return [
        f"--container-image={request.container_image}",
        f"{_MOUNTS}{','.join(mounts)}",
        f"--container-workdir={Path.cwd()}",
        *(each for each in request.container_options if not each.startswith(_MOUNTS)),
    ]


def _inside(run: RunElsewhere, request: Request) -> list[str]:
    """Return what starts a command in a container, with apptainer."""
    if not request.apptainer:
        return []
    bound = [word for path in _shared(run) for word in ("--bind", path)]
    drivers = ["--nv"] if run.device == "cuda" else []
    return [
        "apptainer",
        "exec",
        *bound,
        "--pwd",
        str(Path.cwd()),
        *drivers,
        *request.container_options,
        request.apptainer,
    ]


def _shared(run: RunElsewhere) -> tuple[str, ...]:
    """Return the folders that containers of a node share: Ray's, that of the job, that of the run."""
    return tuple(dict.fromkeys(("/tmp", str(Path.cwd()), str(run.folder.root))))
