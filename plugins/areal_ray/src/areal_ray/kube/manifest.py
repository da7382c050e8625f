"""The manifests of one run: a ConfigMap with its files, a RayJob, and a claim if it is to be made.

Knows: the fields of KubeRay's ray.io/v1 (1.6) and of the pods in it.
Does not know: options (`request`), or yaml.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_core.contract.device import CPU
from areal_core.contract.errors import ConfigError
from areal_ray.elsewhere import RunElsewhere
from areal_ray.kube.request import Request, worker_cpus

Manifest = Mapping[str, Any]  # Any: an object of Kubernetes
RUNS, FILES = "/areal", "/etc/areal"
"""Where pods have the claim, and the run's own files."""
_MAX_FILES = 1_000_000
"""Bytes of a ConfigMap, a little less than Kubernetes takes."""
_MEMORY_OF_RAY = 1 << 30
_SCRIPT = """#!/bin/bash
# Written by `areal kube`. A job that is tried again finds the run of the first time and goes on with it.
run_folder={folder}
export RAY_DISABLE_FAILURE_SIGNAL_HANDLER=1 # it ends a process three seconds after TERM: too short to save a state
where=(out="$run_folder")
if [[ -e $run_folder/events.jsonl ]]; then where=(--resume "$run_folder"); fi
exec areal train {files}/run.yaml {overrides} "${{where[@]}}" scheduler.backend=ray
"""


@frozen(kw_only=True)
class Job:
    """A run and what was asked for it.

    Example: Job(run=run, request=request, ray_version="2.60.0").manifests()
    """

    run: RunElsewhere
    request: Request
    ray_version: str

    def manifests(self) -> Sequence[Manifest]:
        """Return what `kubectl apply` takes, in its order.

        Raises:
            ConfigError: files of the run do not fit into a ConfigMap, or share a name.
        """
        claim = [self._claim()] if self.request.claim_size else []
        return [*claim, self._config_map(), self._ray_job()]

    @property
    def name(self) -> str:
        """Return the name of the RayJob and of its ConfigMap."""
        return self.request.job_name(self.run)

    def _metadata(self, name: str) -> Manifest:
        namespace = {"namespace": self.request.namespace} if self.request.namespace else {}
        return {"name": name, **namespace, "labels": {"app.kubernetes.io/managed-by": "areal"}}

    def _claim(self) -> Manifest:
        storage = {"storageClassName": self.request.storage_class} if self.request.storage_class else {}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": self._metadata(self.request.claim),
            "spec": {
                "accessModes": ["ReadWriteMany"],
                **storage,
                "resources": {"requests": {"storage": self.request.claim_size}},
            },
        }

    def _config_map(self) -> Manifest:
        files = {"run.yaml": self.run.file.read_text(encoding="utf-8"), "run.sh": self._script()}
        for path in self.run.imports:
            if path.name in files:
                raise ConfigError(
                    f"two files of the run are called {path.name}",
                    why="in the pods all of them are in one folder",
                    fix="rename one of those in imports",
                )
            files[path.name] = path.read_text(encoding="utf-8")
        size = sum(len(text.encode()) for text in files.values())
        if size > _MAX_FILES:
            raise ConfigError(
                f"the run's own files have {size} bytes",
                why=f"a ConfigMap takes {_MAX_FILES}",
                fix="have large ones in the image, and name them there: --in-pod imports=[/app/my_run.py]",
            )
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._metadata(self.name), "data": files}

    def _script(self) -> str:
        imports = ",".join(f"{FILES}/{path.name}" for path in self.run.imports)
        overrides = [*self.run.overrides, *([f"imports=[{imports}]"] if imports else []), *self.request.in_pod]
        return _SCRIPT.format(
            folder=shlex.quote(f"{RUNS}/runs/{self.name}"), files=FILES, overrides=" ".join(map(shlex.quote, overrides))
        )

    def _ray_job(self) -> Manifest:
        secret = {"secretName": self.request.auth_secret} if self.request.auth_secret else {}
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": self._metadata(self.name),
            "spec": {
                "entrypoint": f"bash {FILES}/run.sh",
                "submissionMode": "K8sJobMode",
                "backoffLimit": self.request.retries,
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": {
                    "rayVersion": self.ray_version,
                    "authOptions": {"mode": "token", **secret},
                    "headGroupSpec": self._head(),
                    "workerGroupSpecs": [self._workers()],
                },
            },
        }

    def _head(self) -> Manifest:
        """Return the pod of the controller; workers go elsewhere."""
        cpus, memory = self.request.head_cpus, self.request.head_memory
        ports = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
        container = {
            "name": "ray-head",
            **self._container({"cpu": str(cpus), "memory": memory}),
            "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        }
        return {"rayStartParams": {"num-cpus": "0", **self._store()}, "template": self._pod(container)}

    def _workers(self) -> Manifest:
        run, request = self.run, self.request
        limits = {"cpu": str(worker_cpus(run)), "memory": request.worker_memory(run)}
        if run.device != CPU:
            limits[request.resource(run.device)] = str(run.nodes.gpus)
        count = run.nodes.count
        return {
            "groupName": "workers",
            "replicas": count,
            "minReplicas": count,
            "maxReplicas": count,
            "rayStartParams": self._store(),
            "template": self._pod({"name": "ray-worker", **self._container(limits)}),
        }

    @staticmethod
    def _store() -> Manifest:
        """Return the size of Ray's own memory: messages pass through it, weights do not."""
        return {"object-store-memory": str(_MEMORY_OF_RAY)}

    def _container(self, limits: Mapping[str, str]) -> Manifest:
        secrets = [{"secretRef": {"name": name}} for name in self.request.env_from]
        mounts = {"runs": RUNS, "files": FILES, "shared-memory": "/dev/shm"}
        return {
            "image": self.request.image,
            **({"envFrom": secrets} if secrets else {}),
            "resources": {"requests": dict(limits), "limits": dict(limits)},
            "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
        }

    def _pod(self, container: Manifest) -> Manifest:
        return {
            "spec": {
                "containers": [container],
                "volumes": [
                    {"name": "runs", "persistentVolumeClaim": {"claimName": self.request.claim}},
                    {"name": "files", "configMap": {"name": self.name}},
                    # What a pod has by default, 64 MiB, is too small for weights on their way.
                    {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
                ],
            }
        }
