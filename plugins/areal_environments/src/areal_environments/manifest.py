"""What this package brings, described without importing it."""

from __future__ import annotations

from areal_core.plugins.claims import full, unsupported
from areal_core.plugins.manifest import Manifest

_DEVICES = ("cpu", "cuda", "npu")
_CLAIMS = {
    "multi_turn": full(),
    "adapters": unsupported("every answer is the policy's"),
    "images": unsupported("the endpoint takes text"),
}
_VERIFIERS = ("verifiers>=0.3.1",)

VERIFIERS = Manifest(
    role="workflow",
    name="verifiers",
    contract=(1, 3),
    factory="areal_environments.verifiers:workflow",
    config="areal_environments.verifiers:VerifiersConfig",
    devices=_DEVICES,
    requires=_VERIFIERS,
    extra="verifiers",
    claims=_CLAIMS,
    summary="a rollout of an environment of verifiers, scored by its rubric",
)

VERIFIERS_ROWS = Manifest(
    role="dataset",
    name="verifiers",
    contract=(1, 0),
    factory="areal_environments.verifiers:rows",
    config="areal_environments.verifiers:VerifiersRows",
    requires=_VERIFIERS,
    extra="verifiers",
    summary="the rows of an environment of verifiers, installed or in a file",
)

OPENENV = Manifest(
    role="workflow",
    name="openenv",
    contract=(1, 3),
    factory="areal_environments.openenv:workflow",
    config="areal_environments.openenv:OpenEnvConfig",
    devices=_DEVICES,
    claims=_CLAIMS,
    summary="a session of an OpenEnv server: text becomes actions, observations messages",
)

OPENENV_ROWS = Manifest(
    role="dataset",
    name="openenv",
    contract=(1, 0),
    factory="areal_environments.openenv:rows",
    config="areal_environments.openenv:OpenEnvRows",
    summary="what the sessions of an OpenEnv server begin with: seeds, or numbers of tasks",
)

NEMO_GYM = Manifest(
    role="workflow",
    name="nemo_gym",
    contract=(1, 3),
    factory="areal_environments.nemo_gym:workflow",
    config="areal_environments.nemo_gym:NemoGymConfig",
    devices=_DEVICES,
    claims=_CLAIMS,
    summary="a session of a NeMo Gym resource server: its tools, its verification",
)

NEMO_GYM_ROWS = Manifest(
    role="dataset",
    name="nemo_gym",
    contract=(1, 0),
    factory="areal_environments.nemo_gym_rows:rows",
    config="areal_environments.nemo_gym_rows:NemoGymRows",
    summary="rows in NeMo Gym's own JSONL form",
)

HARBOR = Manifest(
    role="workflow",
    name="harbor",
    contract=(1, 3),
    factory="areal_environments.harbor:workflow",
    config="areal_environments.harbor:HarborConfig",
    devices=_DEVICES,
    claims=_CLAIMS,
    summary="a task folder of Harbor or Terminal-Bench, done at a sandbox's shell and tested there",
)

HARBOR_ROWS = Manifest(
    role="dataset",
    name="harbor",
    contract=(1, 0),
    factory="areal_environments.harbor:rows",
    config="areal_environments.harbor:HarborRows",
    summary="task folders of Harbor (task.toml) and Terminal-Bench (task.yaml)",
)
