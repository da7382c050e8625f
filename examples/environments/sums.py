"""A taskset of verifiers from 0.4 on in one file: sums of two numbers, as many as are asked for."""

import random
from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    """One task."""

    answer: str


class Sum(vf.Task):
    """How it is judged."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """Return 1 for the answer; one without text is None here."""
        return float((trace.messages[-1].content or "").strip() == self.data.answer)


class SumsConfig(vf.TasksetConfig):
    """What `arguments: {taskset: ...}` may set."""

    largest: int = 9


class Sums(vf.Taskset[Sum, SumsConfig]):
    """The tasks, without an end."""

    INFINITE = True

    def load(self) -> Iterator[Sum]:
        """Return them one after the other, always the same."""
        draw = random.Random(1)
        while True:
            a, b = (draw.randint(0, self.config.largest) for _ in range(2))
            yield Sum(SumData(prompt=f"{a}+{b}=", answer=str(a + b)), self.config.task)


__all__ = ["Sums"]
