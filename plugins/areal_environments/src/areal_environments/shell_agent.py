"""The policy at a shell: it is told a task, runs commands one after another, and ends by saying something else.

Knows: how a command is asked for and what of its output is told.
Does not know: where a command runs, or what the task is worth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import frozen

from areal_agentic.sandbox import Ending, Ran
from areal_environments.policy import Message, Policy

Run = Callable[[str], Awaitable[Ran]]
TOOL: dict[str, Any] = {  # Any: JSON
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command in a POSIX shell. Each one begins in the same folder; files stay.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
_BLOCK = re.compile(r"```(?:sh|bash|shell)\n(.*?)```", re.DOTALL)


@frozen(kw_only=True)
class _Asked:
    """One command the policy asked for, or why what it wrote is none."""

    command: str = ""
    call_id: str = ""
    problem: str = ""


async def work(policy: Policy, run: Run, *, max_turns: int, max_chars: int) -> None:
    """Let the policy run commands until it asks for none, or gave its last answer.

    It calls the tool `run` if the conversation has it, else it writes one command as a block of ```sh.
    """
    while policy.num_answers < max_turns:
        message = await policy.answer()
        asked = [] if message is None else _asked(message, tools=bool(policy.tools))
        if not asked or policy.num_answers == max_turns:
            break
        for each in asked:
            told = each.problem or _told(await run(each.command), max_chars)
            if each.call_id:
                policy.say("tool", told, tool_call_id=each.call_id)
            else:
                policy.say("user", told)


def _asked(message: Message, *, tools: bool) -> list[_Asked]:
    if not tools:
        return [_Asked(command=block) for block in _BLOCK.findall(message.get("content") or "")[:1]]
    asked = []
    for call in message.get("tool_calls") or ():
        given = call["function"]["arguments"]
        try:
            asked.append(_Asked(call_id=call["id"], command=str(json.loads(given)["command"])))
        except (ValueError, KeyError, TypeError):
            problem = f"The tool is run, and its argument command; this is none: {given[:200]}"
            asked.append(_Asked(call_id=call["id"], problem=problem))
    return asked


def _told(ran: Ran, max_chars: int) -> str:
    how = f"exit code {ran.exit_code}" if ran.ending == Ending.EXITED else f"killed: {ran.ending}"
    said = "\n".join(filter(None, (ran.stdout.rstrip(), ran.stderr.rstrip())))
    if len(said) > max_chars:
        half = max_chars // 2
        said = f"{said[:half]}\n... {len(said) - 2 * half} characters left out ...\n{said[-half:]}"
    return f"{said}\n[{how}]" if said else f"[{how}]"
