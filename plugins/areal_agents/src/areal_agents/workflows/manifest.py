"""The workflows of turns that this package brings, and what goes with them: plain data, nothing imported."""

from __future__ import annotations

from areal_core.plugins.claims import Claim, full, unsupported
from areal_core.plugins.manifest import Manifest


def _workflow(name: str, words: str, summary: str, adapter: str, **claims: Claim) -> Manifest:
    return Manifest(
        role="workflow",
        name=name,
        contract=(1, 3),
        factory=f"areal_agents.workflows.{name}:{words}Workflow",
        config=f"areal_agents.workflows.{name}:{words}Config",
        requires=("torch>=2.11",),
        devices=("cpu", "cuda", "npu"),
        summary=summary,
        conformance=f"areal_agents.workflows.conformance.{adapter}",
        claims={"images": unsupported("renderers write text"), **claims},
    )


_ONE = unsupported("a conversation has one answer of the policy")
_OF_POLICY = unsupported("every answer is the policy's")

MULTI_TURN = _workflow(
    "multi_turn",
    "MultiTurn",
    "ask until an answer passes, with feedback and a discount of retries",
    "multi_turn:MULTI_TURN",
    multi_turn=full(),
    adapters=_OF_POLICY,
)
TOOLS = _workflow(
    "tools",
    "Tools",
    "the policy calls tools: a calculator, Python in a sandbox, your own functions",
    "tools:TOOLS",
    multi_turn=full(),
    adapters=_OF_POLICY,
)
SELF_PLAY = _workflow(
    "self_play",
    "SelfPlay",
    "one policy proposes tasks and solves them, a reward for each role",
    "roles:SELF_PLAY",
    multi_turn=_ONE,
    adapters=_OF_POLICY,
)
JUDGE = _workflow(
    "judge",
    "Judge",
    "answers graded by an adapter beside the policy, or by itself",
    "roles:JUDGE",
    multi_turn=_ONE,
    adapters=full(),
)
PER_ROLE = Manifest(
    role="estimator",
    name="per_role",
    contract=(1, 0),
    factory="areal_agents.workflows.per_role:PerRole",
    requires=("torch>=2.11",),
    devices=("cpu", "cuda", "npu"),
    summary="reward less the mean of its role in its group: for self_play",
)
