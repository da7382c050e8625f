"""Guess a letter: an environment in one file, with the rows it is played with. See letters.yaml."""

import random
from typing import Any

from openai import AsyncOpenAI

from areal_core import dataset
from areal_core.contract.workflow import RewardResult

LETTERS = "abcdefgh"
TURNS = 3
CLIENT = AsyncOpenAI(base_url="http://unset", api_key="unset")  # one for all episodes


@dataset("letters")
def letters(size: int = 10_000, first: int = 0) -> list[dict[str, Any]]:
    """Return what games begin with; a row is whatever the environment needs."""
    return [{"secret": random.Random(first + number).choice(LETTERS)} for number in range(size)]


class Game:
    """The environment: what there is to see, and what a guess changes."""

    def __init__(self, secret: str) -> None:
        self.secret, self.left, self.found = secret, LETTERS, False

    def seen(self) -> str:
        """Say between which letters the secret is."""
        return f"{self.left[0]}-{self.left[-1]}>"

    def guess(self, letter: str) -> None:
        """Find it, or leave less to guess from; what is none of the letters left changes nothing."""
        if len(letter) == 1 and letter in self.left:
            before, _, after = self.left.partition(letter)
            self.found = letter == self.secret
            self.left = letter if self.found else before if self.secret < letter else after


async def run(row: dict[str, Any], base_url: str, api_key: str) -> RewardResult:
    """Play one game: half of the reward for a letter found, half for letters excluded."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    game, messages, turns = Game(row["secret"]), [], 0
    while turns < TURNS and not game.found:
        messages.append({"role": "user", "content": game.seen()})
        answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=1)
        said = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
        game.guess(said)
        turns += 1
    excluded = 1.0 - (len(game.left) - 1) / (len(LETTERS) - 1)
    components = {"found": float(game.found), "excluded": excluded, "turns": float(turns)}
    return RewardResult(value=0.5 * game.found + 0.5 * excluded, components=components)
