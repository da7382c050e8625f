"""`areal kube run.yaml --image IMAGE --claim runs`: the manifest that runs it on a cluster with KubeRay.

Knows: arguments, where the manifest goes, what a user is told.
Does not know: planning (`elsewhere`), what is in a manifest (`manifest`), or any cluster: nothing is sent.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import attrs
import yaml
from cyclopts import Parameter
from rich.console import Console

from areal_core.contract.device import CPU
from areal_core.contract.errors import StorageError
from areal_ray.elsewhere import Nodes, plan_elsewhere
from areal_ray.kube.manifest import RUNS, Job
from areal_ray.kube.request import Request, sized


def kube_command(
    config: Path,
    *overrides: str,
    image: Annotated[str, Parameter(help="Container image with areal, areal-ray and the run's engines.")],
    claim: Annotated[str, Parameter(help="PersistentVolumeClaim that all pods can write; run folders are on it.")],
    workers: Annotated[int, Parameter(help="Worker pods; 0 takes as many as the plan needs.")] = 0,
    gpus_per_worker: Annotated[
        int | None, Parameter(help="Accelerators of each; 0 is a run on cpus. Without it 8 at most, as the plan needs.")
    ] = None,
    cpus_per_worker: Annotated[int, Parameter(help="Processors of each; 0 takes what the plan needs.")] = 0,
    memory_per_worker: Annotated[str, Parameter(help="Memory of each, such as 256Gi.")] = "",
    head_cpus: Annotated[int, Parameter(help="Processors of the pod of the controller.")] = 4,
    head_memory: Annotated[str, Parameter(help="Memory of the pod of the controller.")] = "16Gi",
    device_resource: Annotated[str, Parameter(help="What accelerators are called there: nvidia.com/gpu.")] = "",
    namespace: str = "",
    name: Annotated[str, Parameter(help="Of the job; without it made of the run's.")] = "",
    auth_secret: Annotated[
        str, Parameter(help="Secret with Ray's token under auth_token; without it KubeRay makes one.")
    ] = "",
    env_from: Annotated[list[str] | None, Parameter(help="Secret whose entries are variables of all pods.")] = None,
    in_pod: Annotated[
        list[str] | None, Parameter(help="An override that holds there only: model.path=/areal/models/mine.")
    ] = None,
    claim_size: Annotated[str, Parameter(help="Make the claim too, of this size.")] = "",
    storage_class: Annotated[str, Parameter(help="Of a claim that is made.")] = "",
    retries: Annotated[int, Parameter(help="How often the job is tried again; the run goes on each time.")] = 3,
    ray_version: Annotated[str, Parameter(help="Of Ray in the image; without it the one installed here.")] = "",
    assume: Annotated[str, Parameter(help="What one worker has, such as cuda:8x80GB; tells what cannot fit.")] = "",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="Write the manifest to this file.")] = None,
) -> int:
    """Print the manifest of a run for Kubernetes with KubeRay 1.6 or newer: kubectl apply -f.

    Parameters
    ----------
    config:
        The run's yaml file.
    overrides:
        Values that replace those of the file: rollout.max_staleness=0 actor.backend=fsdp:d16
    """
    request = Request(
        image=image,
        claim=claim,
        claim_size=claim_size,
        storage_class=storage_class,
        namespace=namespace,
        name=name,
        memory=memory_per_worker,
        head_cpus=head_cpus,
        head_memory=head_memory,
        device_resource=device_resource,
        auth_secret=auth_secret,
        env_from=tuple(env_from or ()),
        in_pod=tuple(in_pod or ()),
        retries=retries,
    )
    one = Nodes.of(1, gpus_per_worker or 0, cpus_per_worker, assume, word="worker")
    kind = one.kind if assume else CPU if gpus_per_worker == 0 else "cuda"
    planned = plan_elsewhere(config, overrides, kind)
    count, gpus = sized(planned, workers, one.gpus)
    run = planned.on(attrs.evolve(one, count=count, gpus=gpus))
    job = Job(run=run, request=request, ray_version=ray_version or version("ray"))
    text = yaml.dump_all(job.manifests(), Dumper=_Blocks, sort_keys=False, allow_unicode=True)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(run.told())
    console.print(
        f"{count} worker pods of {gpus} {run.device}; the run folder is {RUNS}/runs/{job.name} on the claim {claim}"
    )
    _write(text, output)
    return 0


class _Blocks(yaml.SafeDumper):
    """Writes files as blocks of text, for people to read, and everything in full."""

    def ignore_aliases(self, data: object) -> bool:
        """Repeat what stands in two places."""
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _block)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{output} cannot be written", why=str(error), fix="choose another file with -o") from None
