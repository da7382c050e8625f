"""An agent in one file: any client of OpenAI's API, a base URL, a key. It spells a word backward, in two tries.

areal quickstart rollout.agent=examples/agents/speller.py:run
"""

from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(base_url="http://unset", api_key="unset")  # one for all episodes


async def run(row, base_url, api_key):
    """Ask until the answer is right, at most twice, and return the reward: less for the second try."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    messages = [{"role": "user", "content": row["prompt"]}]
    for reward in (1.0, 0.5):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        said = answer.choices[0].message.content
        if said == row["answer"]:
            return reward
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": row["prompt"]}]
    return 0.0
