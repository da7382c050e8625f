"""`areal serve run.yaml`: train on the sessions of whoever comes, with the policy that serves them.

Knows: that it is `areal train` of the kind `online`.
Does not know: how any of it works.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from areal_core.cli.train import train_command


def serve_command(
    config: Path | None = None,
    *overrides: str,
    resume: Annotated[Path | None, Parameter(help="Continue the run in this folder from its last state.")] = None,
    dry_run: Annotated[bool, Parameter(help="Print the resolved plan and stop; no model is loaded.")] = False,
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
    return train_command(
        config, *overrides, "kind=online", resume=resume, dry_run=dry_run, archive=archive, quiet=quiet
    )
