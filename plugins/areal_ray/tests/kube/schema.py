"""What KubeRay 1.6 takes as a RayJob, by its API reference, and Kubernetes as everything else.

KubeRay's own definition of the resource is a file of its repository that no package ships. The fields here are those
its reference names for RayJobSpec, RayClusterSpec, HeadGroupSpec, WorkerGroupSpec and AuthOptions, with their types;
a pod template in them is judged by Kubernetes' own schema, of the package kubernetes-validate.

Knows: names and types of fields. An unknown one is an error: the API server would drop it without a word.
Does not know: what the operator does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator

KUBERNETES = "1.32"

Schema = Mapping[str, Any]  # Any: a JSON schema
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number", "minimum": 0}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_ANY: Schema = {"type": "object"}


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_AUTH = _object((), mode={"enum": ["disabled", "token"]}, secretName=_TEXT, enableK8sTokenAuth=_FLAG)
_GROUP = {"rayStartParams": _TEXTS, "template": _ANY, "resources": _TEXTS, "labels": _TEXTS}
_HEAD = _object(("template",), **_GROUP, headService=_ANY, enableIngress=_FLAG, serviceType=_TEXT)
_WORKERS = _object(
    ("groupName", "minReplicas", "maxReplicas", "template"),
    **_GROUP,
    groupName=_TEXT,
    replicas=_COUNT,
    minReplicas=_COUNT,
    maxReplicas=_COUNT,
    numOfHosts=_COUNT,
    idleTimeoutSeconds=_COUNT,
    scaleStrategy=_ANY,
    suspend=_FLAG,
)
_CLUSTER = _object(
    ("headGroupSpec",),
    authOptions=_AUTH,
    autoscalerOptions=_ANY,
    enableInTreeAutoscaling=_FLAG,
    gcsFaultToleranceOptions=_ANY,
    headGroupSpec=_HEAD,
    headServiceAnnotations=_TEXTS,
    managedBy=_TEXT,
    rayVersion=_TEXT,
    suspend=_FLAG,
    workerGroupSpecs={"type": "array", "items": _WORKERS},
)
_JOB = _object(
    (),
    activeDeadlineSeconds=_COUNT,
    backoffLimit=_COUNT,
    clusterSelector=_TEXTS,
    deletionStrategy=_ANY,
    entrypoint=_TEXT,
    entrypointNumCpus=_NUMBER,
    entrypointNumGpus=_NUMBER,
    entrypointResources=_TEXT,
    jobId=_TEXT,
    managedBy=_TEXT,
    metadata=_TEXTS,
    rayClusterSpec=_CLUSTER,
    runtimeEnvYAML=_TEXT,
    shutdownAfterJobFinishes=_FLAG,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    submitterConfig=_ANY,
    submitterPodTemplate=_ANY,
    suspend=_FLAG,
    ttlSecondsAfterFinished=_COUNT,
)
_RAY_JOB = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=_ANY,
    spec=_JOB,
)


def check(manifest: Mapping[str, Any]) -> None:
    """Raise an error that names the field, if a manifest would not be taken as it is. Any: an object of Kubernetes."""
    if manifest.get("kind") != "RayJob":
        kubernetes_validate.validate(dict(manifest), KUBERNETES, strict=True)
        return
    Draft202012Validator(_RAY_JOB).validate(manifest)
    cluster = manifest["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": manifest["metadata"],
            "template": group["template"],
        }
        kubernetes_validate.validate(template, KUBERNETES, strict=True)
