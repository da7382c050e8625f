"""What `areal serve` runs, described without importing it."""

from __future__ import annotations

from areal_core.plugins.claims import full, unsupported
from areal_core.plugins.manifest import Manifest

_DEVICES = ("cpu", "cuda", "npu")

KIND = Manifest(
    role="kind",
    name="online",
    contract=(1, 0),
    factory="areal_agents.serve.kind:Online",
    config="areal_agents.serve.config:OnlineConfig",
    devices=_DEVICES,
    summary="an always-on endpoint whose rewarded sessions are trained on: areal serve",
)
WORKFLOW = Manifest(
    role="workflow",
    name="online",
    contract=(1, 3),
    factory="areal_agents.serve.workflow:OnlineWorkflow",
    devices=_DEVICES,
    summary="the session of an outside client is an episode: of the kind online",
    claims={
        "multi_turn": full(),
        "adapters": unsupported("every answer is the policy's"),
        "images": unsupported("the endpoint takes text"),
    },
)
CLIENTS = Manifest(
    role="dataset",
    name="clients",
    contract=(1, 0),
    factory="areal_agents.serve.clients:clients",
    devices=_DEVICES,
    summary="an empty row for every session of a client: of the kind online",
)
