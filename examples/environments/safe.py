"""Open a safe: an environment with a tool and a state, in one file."""

import json
import random
from typing import Any

from openai import AsyncOpenAI

from areal_core import dataset
from areal_core.contract.workflow import RewardResult

TURNS = 6
CLIENT = AsyncOpenAI(base_url="http://unset", api_key="unset")  # one for all episodes
DIAL = {
    "type": "function",
    "function": {
        "name": "dial",
        "description": "Turn the dial of the safe to a number from 0 to 31, and listen.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


@dataset("safes")
def safes(size: int = 10_000, first: int = 0, digits: int = 2) -> list[dict[str, Any]]:
    """Return safes, each with the numbers that open it."""
    draws = (random.Random(first + number) for number in range(size))
    return [{"combination": [draw.randrange(32) for _ in range(digits)]} for draw in draws]


class Safe:
    """The state: which numbers were found so far."""

    def __init__(self, combination: list[int]) -> None:
        self.combination, self.found = combination, 0

    @property
    def open(self) -> bool:
        """Tell whether all were."""
        return self.found == len(self.combination)

    def dial(self, number: int) -> str:
        """Turn the dial: the tool."""
        if self.open:
            return "It is open."
        wanted = self.combination[self.found]
        if number != wanted:
            return "A click, further on." if number < wanted else "A click, further back."
        self.found += 1
        return "It opens." if self.open else "It gives way. One more number."


def call(safe: Safe, arguments: str) -> str:
    """Make a call of the policy's; what is wrong with one is told to it, and the game goes on."""
    try:
        return safe.dial(int(json.loads(arguments)["number"]))
    except (ValueError, TypeError, KeyError) as error:
        return f"dial takes a number: {type(error).__name__}: {error}"


async def run(row: dict[str, Any], base_url: str, api_key: str) -> RewardResult:
    """Play one game: half of the reward for the numbers found, half for an open safe."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    safe = Safe(row["combination"])
    messages: list[Any] = [{"role": "user", "content": f"Open the safe. It has {len(safe.combination)} numbers."}]
    calls = 0
    for _ in range(TURNS):
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=[DIAL])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for each in message.tool_calls or ():
            calls += 1
            told = call(safe, each.function.arguments)
            messages.append({"role": "tool", "tool_call_id": each.id, "content": told})
        if safe.open or not message.tool_calls:
            break
    share = safe.found / len(safe.combination)
    return RewardResult(value=0.5 * share + 0.5 * safe.open, components={"calls": float(calls), "found": share})
