"""`areal serve run.yaml`: train on the sessions of whoever comes, with the policy that serves them.

Knows: that it is `areal train` of the kind `online`.
Does not know: how any of it works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from areal_core.cli.train import complete_overrides, train_command
from areal_core.config.load import load_config
from areal_core.config.schema import RL
from areal_core.contract.errors import ConfigError, PlanError

KIND = "online"


def serve_command(
    config: Path | None = None,
    *overrides: Annotated[str, Parameter(completer=complete_overrides)],
    resume: Annotated[Path | None, Parameter(help="Continue the run in this folder from its last state.")] = None,
    dry_run: Annotated[bool, Parameter(help="Print the resolved plan and stop; no model is loaded.")] = False,
    assume: Annotated[
        str, Parameter(help="With --dry-run: plan for another machine, such as cuda:8x80GB or cpu:64GB.")
    ] = "",
    archive: Annotated[
        bool, Parameter(help="Move an earlier run in the folder aside, to <folder>.1, and start.")
    ] = False,
    quiet: Annotated[bool, Parameter(help="Print nothing but errors.")] = False,
) -> int:
    """Serve a policy that learns from the sessions it serves. Ctrl-C ends it; --resume goes on.

    Parameters
    ----------
    config:
        The run's yaml file. Optional with --resume, which uses the run's own config.yaml.
    overrides:
        Values that replace those of the file: options.port=8201 rollout.prompts_per_step=32
    """
    if config is not None and "=" in str(config) and not config.exists():
        overrides, config = (str(config), *overrides), None
    if config is None and resume is None:
        raise ConfigError("no configuration given", why="areal serve needs a yaml file", fix="areal serve run.yaml")
    file = config if config is not None or resume is None else resume / "config.yaml"
    if file is not None and file.is_file():
        _check_kind(load_config(file, overrides).kind)
    return train_command(
        config,
        *overrides,
        f"kind={KIND}",
        resume=resume,
        dry_run=dry_run,
        assume=assume,
        archive=archive,
        quiet=quiet,
    )


def _check_kind(kind: str) -> None:
    """Refuse a run that says of itself that it is another one."""
    if kind not in (RL, KIND):
        raise PlanError(
            f"kind={kind}, and areal serve makes a run of kind {KIND}",
            why="a run is of one kind",
            fix="remove kind; areal train runs every kind",
        )
