"""What this plugin adds to `areal`: commands.

Knows: their names. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add the commands of runs on many machines."""
    return [
        Command(
            name="job",
            target="areal_ray.job.command:app",
            help="Hand runs to a Ray cluster, and follow them.",
        ),
        Command(
            name="kube",
            target="areal_ray.kube.command:kube_command",
            help="Print the manifest that runs a yaml file on Kubernetes, with KubeRay.",
        ),
        Command(
            name="slurm",
            target="areal_ray.slurm.command:slurm_command",
            help="Run a yaml file as a job of Slurm: a Ray cluster on its nodes, and the run on it.",
        ),
    ]
