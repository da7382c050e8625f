"""What a user asks of Slurm for one run.

Knows: options, and which values may stand in a batch script.
Does not know: the site (`site`), or the script (`script`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

from areal_core.contract.errors import ConfigError

_KEY = re.compile(r"[a-z][a-z0-9-]*")
_VALUE = re.compile(r"[^\x00-\x1f\x7f\"\\]*")  # sbatch has no escape for these in a line of a script
_OURS = {
    "chdir": "",
    "export": "",
    "gpus-per-node": "--gpus-per-node",
    "job-name": "name=NAME",
    "nodes": "--nodes",
    "ntasks": "",
    "ntasks-per-node": "",
    "open-mode": "",
    "output": "out=FOLDER",
    "no-requeue": "--requeue",
    "requeue": "--requeue",
    "signal": "--notice",
    "time": "--time",
    "partition": "--partition",
    "account": "--account",
    "cpus-per-task": "--cpus-per-node",
}
"""Options of sbatch that the script sets by itself, and what is said in their place."""


@frozen(kw_only=True)
class Request:
    """Options of one job.

    Example: Request(nodes=2, gpus_per_node=8, partition="gpu", time="12:00:00", extra=("qos=high", "mem=0"))
    """

    nodes: int
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    """0 takes nodes as a whole."""
    partition: str = ""
    account: str = ""
    time: str = ""
    requeue: bool = False
    notice_s: int = 120
    """So long before its time is up a run is told to save its state."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch, KEY=VALUE, or KEY for one without a value."""
    container_image: str = ""
    """Run in containers of this image, by pyxis' options of srun."""
    apptainer: str = ""
    """Run in containers of this image, by apptainer."""
    container_options: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot stand in a script, or contradicts itself."""
        if self.container_image and self.apptainer:
            raise ConfigError(
                "--container-image beside --apptainer", why="one of them starts the run", fix="leave out one"
            )
        if self.container_options and not (self.container_image or self.apptainer):
            raise ConfigError(
                "--container-option without a container",
                why="it is an option of one",
                fix="add --container-image IMAGE or --apptainer IMAGE",
            )
        if self.notice_s < 1:
            raise ConfigError(
                f"--notice {self.notice_s}", why="it is in seconds, 1 or more", fix="for example --notice 120"
            )
        for option in self.extra:
            key = option.partition("=")[0]
            if not _KEY.fullmatch(key):
                raise ConfigError(
                    f"--sbatch {option!r} is no option of sbatch",
                    why="it is KEY=VALUE, or KEY alone",
                    fix="for example --sbatch qos=high",
                )
            if key in _OURS:
                raise ConfigError(
                    f"--sbatch {option!r} is set by areal",
                    why="the job would not be that of the plan",
                    fix=f"use {_OURS[key]}" if _OURS[key] else "leave it out",
                )

    def options(self, name: str, log: str) -> Iterator[str]:
        """Yield the options of sbatch, as they stand in a script.

        Args:
            name: of the job.
            log: where its output goes, in the words of sbatch: %j is the job's number.

        Raises:
            ConfigError: a value has characters that sbatch cannot read in a script.
        """
        yield from self._pair("job-name", name)
        yield from self._pair("output", log)
        yield from ("open-mode=append", f"nodes={self.nodes}", "ntasks-per-node=1")
        if self.gpus_per_node:
            yield f"gpus-per-node={self.gpus_per_node}"
        yield f"cpus-per-task={self.cpus_per_node}" if self.cpus_per_node else "exclusive"
        for key in ("partition", "account", "time"):
            if value := getattr(self, key):
                yield from self._pair(key, value)
        yield "requeue" if self.requeue else "no-requeue"
        yield f"signal=B:USR1@{self.notice_s}"
        for option in self.extra:
            key, _, value = option.partition("=")
            yield from self._pair(key, value) if value else (key,)

    @staticmethod
    def _pair(key: str, value: str) -> Iterator[str]:
        if not _VALUE.fullmatch(value):
            raise ConfigError(
                f"{key} {value!r} cannot stand in a script of Slurm",
                why="sbatch reads no quotes, backslashes or control characters there",
                fix="choose another one: letters, digits, spaces and . , : / + - _ = % do",
            )
        yield f'{key}="{value}"'
