"""An agent in one file: any client of OpenAI's API, a base URL, a key. It spells a word backward, in two tries.

areal quickstart rollout.workflow.name=agent rollout.workflow.options.run=examples/agents/speller.py:run
"""

from typing import Any

from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(
    base_url="http://unset", api_key="unset"
)  # one for all episodes: making one takes longer than asking


async def run(row: dict[str, Any], base_url: str, api_key: str) -> float:
    """Ask until the answer is right, at most twice, and return the reward: less for the second try."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    for reward in (1.0, 0.5):
        answer = await client.completions.create(model="policy", prompt=row["prompt"], max_tokens=16)
        if answer.choices[0].text == row["answer"]:
            return reward
    return 0.0
