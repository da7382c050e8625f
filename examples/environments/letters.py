"""Guess a letter: an environment in one file, with the rows it is played with. See letters.yaml."""

import random
from typing import Any

from openai import AsyncOpenAI

from areal_core import dataset
from areal_core.contract.workflow import RewardResult

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TURNS = 5
CLIENT = AsyncOpenAI(base_url="http://unset", api_key="unset")  # one for all episodes


@dataset("letters")
def letters(size: int = 10_000, first: int = 0) -> list[dict[str, Any]]:
    """Return what games begin with; a row is whatever the environment needs."""
    return [{"secret": random.Random(first + number).choice(LETTERS)} for number in range(size)]


class Game:
    """The environment: what there is to see, and what a guess changes."""

    def __init__(self, secret: str) -> None:
        self.secret, self.low, self.high = secret, "a", "z"

    def seen(self) -> str:
        """Say between which letters the secret is."""
        return f"{self.low}-{self.high}>"

    def guess(self, letter: str) -> bool:
        """Tell whether it is right; else there is less to guess from."""
        if letter and self.low <= letter < self.secret:
            self.low = chr(ord(letter) + 1)
        if letter and self.secret < letter <= self.high:
            self.high = chr(ord(letter) - 1)
        return letter == self.secret


async def run(row: dict[str, Any], base_url: str, api_key: str) -> RewardResult:
    """Play one game: each turn is a message, each answer is trained on. The sooner it is guessed, the better."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    game, messages = Game(row["secret"]), []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": game.seen()})
        answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=4)
        said = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
        if game.guess(said.strip()[:1]):
            return RewardResult(value=1.0 - turn / TURNS, components={"turns": turn + 1.0})
    return RewardResult(value=0.0, components={"turns": float(TURNS)})
