"""An agent with a tool, by OpenAI's chat API: it may have a calculator do the sum.

areal train examples/agents/accountant.yaml model.path=DIR
"""

import json

from openai import AsyncOpenAI

from areal_agents.workflows.builtin import calculator

CLIENT = AsyncOpenAI(base_url="http://unset", api_key="unset")  # one for all episodes
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "additionalProperties": False,
            "properties": {
                "expression": {"type": "string", "description": "numbers, + - * / // % ** and parentheses."}
            },
            "required": ["expression"],
            "type": "object",
        },
    },
}


async def run(row, base_url, api_key):
    """Ask, do what the policy wants calculated, ask again, three times at most; 1 for the right result."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    messages = [{"role": "user", "content": row["prompt"]}]
    for _ in range(3):
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return float(said.content == row["answer"])
        messages += [{"role": "tool", "tool_call_id": call.id, "content": calculated(call)} for call in said.tool_calls]
    return 0.0


def calculated(call):
    """Return a result, or what was wrong with the call."""
    try:
        return calculator(**json.loads(call.function.arguments))
    except Exception as error:
        return f"Error: {error}"
