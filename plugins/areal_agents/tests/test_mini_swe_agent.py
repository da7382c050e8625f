"""A coding harness as it comes from the index: only its base URL is another one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from areal_agents.config import AgentConfig
from areal_agents.workflow import AgentWorkflow
from areal_core.contract.data import Episode

from .scripted import END, Scripted, texts

HARNESS = Path(__file__).parents[3] / "examples/agents/harness.sh"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat answer.txt"


def calling(command: str) -> str:
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<think>\nA command.\n</think>\n\nLet me see.\n<tool_call>\n{call}\n</tool_call>{END}"


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "reward"), [("42", 1.0), ("43", 0.0)])
def test_mini_swe_agent_does_a_task(answer: str, reward: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes a file by a command of the policy and submits it; all it was told is one trajectory, the check pays."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    script = [calling(f"echo {answer} > answer.txt"), calling(SUBMIT)]
    config = AgentConfig(command=["sh", str(HARNESS), "{prompt}", "{check}"], agent_timeout_s=120.0)
    row = {"prompt": "Write 42 into answer.txt.", "check": "grep -qx 42 answer.txt"}

    async def run() -> Episode:
        workflow = AgentWorkflow(config)
        try:
            return await workflow.arun_episode(Scripted(*script), row)
        finally:
            await workflow.close()

    made = asyncio.run(run())

    (trajectory,) = made.trajectories
    whole, mine = texts(trajectory)
    assert (mine, trajectory.reward) == ("".join(script), reward)
    assert "Write 42 into answer.txt." in whole and '"name": "bash"' in whole
    assert '<tool_response>\n{\n  "returncode": 0,' in whole
    assert made.metrics["agent/requests"] == 2.0 and made.metrics["agent/restarted"] == 0.0
