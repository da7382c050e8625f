"""What this package brings, described without importing it."""

from __future__ import annotations

from areal_core.plugins.claims import full, unsupported
from areal_core.plugins.manifest import Manifest

AGENT = Manifest(
    role="workflow",
    name="agent",
    contract=(1, 3),
    factory="areal_agents.workflow:AgentWorkflow",
    config="areal_agents.config:AgentConfig",
    requires=("torch>=2.11",),
    devices=("cpu", "cuda", "npu"),
    summary="any agent that talks to an OpenAI-compatible URL: exact tokens, one key per episode",
    conformance="areal_agents.workflows.conformance.agent:AGENT",
    claims={
        "multi_turn": full(),
        "adapters": unsupported("every answer is the policy's"),
        "images": unsupported("the endpoint takes text"),
    },
)

REWARD = Manifest(
    role="reward",
    name="agent",
    contract=(1, 0),
    factory="areal_agents.own_reward:OwnReward",
    devices=("cpu", "cuda", "npu"),
    summary="what the agent says; where it says nothing, its episode fails",
)

HTTP = Manifest(
    role="endpoint",
    name="http",
    contract=(1, 0),
    factory="areal_agents.endpoint:Endpoint",
    config="areal_agents.endpoint_config:EndpointConfig",
    requires=("torch>=2.11",),
    devices=("cpu", "cuda", "npu"),
    summary="OpenAI's and Anthropic's paths on loopback, a key for every session",
    conformance="areal_agents.conformance:HTTP",
)
