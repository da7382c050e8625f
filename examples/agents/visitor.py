"""A client of `areal serve`: it asks the policy to spell words backward, and says whether each was right.

python examples/agents/visitor.py runs/online/online.json 4000
"""

import asyncio
import json
import random
import string
import sys
from pathlib import Path

from openai import AsyncOpenAI

AT_ONCE = 16


async def visit(admin: AsyncOpenAI, word: str) -> float:
    """Have one session, and tell its reward: 1 if the answer is right."""
    session = await admin.post("/sessions", cast_to=object)
    client = admin.with_options(api_key=session["api_key"])
    answer = await client.completions.create(model="policy", prompt=f"{word}>", max_tokens=16)
    reward = float(answer.choices[0].text == word[::-1])
    await client.post("/reward", body={"reward": reward}, cast_to=object)
    return reward


async def main(found: dict[str, str], num_sessions: int) -> None:
    """Come so often, some at once, to what a key file tells."""
    places, rewards = asyncio.Semaphore(AT_ONCE), []
    async with AsyncOpenAI(base_url=found["base_url"], api_key=found["admin_key"]) as admin:

        async def one() -> None:
            async with places:
                word = "".join(random.choices(string.ascii_lowercase, k=random.randint(3, 8)))
                rewards.append(await visit(admin, word))
                if len(rewards) % 100 == 0:
                    print(f"{len(rewards)} sessions, reward of the last 100: {sum(rewards[-100:]) / 100:.2f}")

        async with asyncio.TaskGroup() as scope:
            for _ in range(num_sessions):
                scope.create_task(one())


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])))
