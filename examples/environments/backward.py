"""An environment of verifiers in one file: a word to be spelled backward. See backward.yaml."""

import random
from typing import Any

import verifiers as vf
from datasets import Dataset

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def words(count: int, length: int, seed: int) -> Dataset:
    """Return the rows: a question, and the answer that the rubric compares with."""
    draw = random.Random(seed)
    made = ["".join(draw.choices(LETTERS, k=length)) for _ in range(count)]
    return Dataset.from_list([{"question": f"{word}>", "answer": word[::-1]} for word in made])


def exact(completion: list[dict[str, Any]], answer: str, **_: object) -> float:
    """Return 1 for the whole answer."""
    return float(completion[-1]["content"] == answer)


def first_letter(completion: list[dict[str, Any]], answer: str, **_: object) -> float:
    """Return 1 for its beginning."""
    return float(completion[-1]["content"].startswith(answer[0]))


def load_environment(count: int = 10_000, length: int = 3) -> vf.Environment:
    """Return the environment: what `verifiers` calls, and the data set's options name."""
    return vf.SingleTurnEnv(
        dataset=words(count, length, seed=1),
        eval_dataset=words(500, length, seed=2),
        rubric=vf.Rubric(funcs=[exact, first_letter], weights=[0.8, 0.2]),
    )
