"""Requests for riddles, and who solved one: for self-play.yaml.

areal train examples/agents/self-play.yaml
"""

import re

from areal_agents.workflows.builtin import calculator
from areal_core import dataset, reward

KINDS = ("with two operators", "with three operators", "with parentheses", "with a division that leaves no rest")


@dataset("riddle_requests")
def riddle_requests(size: int = 4000):
    """Return rows that ask for an arithmetic expression."""
    prompt = "Write one arithmetic expression of whole numbers {kind}, hard enough to be wrong on. Nothing else. ({n})"
    return [{"prompt": prompt.format(kind=KINDS[n % len(KINDS)], n=n)} for n in range(size)]


@reward("riddle_solved")
def riddle_solved(completion, task):
    """Tell whether the last number of an answer is the value of the task; no expression has no solution."""
    try:
        value = calculator(task)
    except Exception:
        return 0.0
    numbers = re.findall(r"-?\d+(?:\.\d+)?", completion.replace(",", ""))
    return float(bool(numbers) and numbers[-1] == value)
