"""What the policy said in one episode, as exact tokens: requests become trajectories without decoding anything.

Answers are kept as a tree. One whose prompt begins with all tokens of an earlier prompt and its answer stands behind
that one; any other is a root: histories that were edited, cut or tokenized otherwise never drift, they start again.

Knows: tokens, and which answer follows which.
Does not know: text, chat templates or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field

from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation
from areal_core.contract.trajectory import TrajectoryBuilder


@define(eq=False)
class Recorded:
    """One answer, in the place where it was given."""

    prompt_ids: tuple[int, ...] = field(converter=tuple[int, ...])
    generation: Generation
    request: int
    """The number of its request among those answered, from 1."""
    before: Recorded | None = None
    after: list[Recorded] = field(factory=list)
    """Answers to prompts that go on from this one."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Return the prompt and the answer: what a prompt that goes on begins with."""
        return self.prompt_ids + self.generation.output_ids


@define
class Recorder:
    """Answers of one episode, in the order in which they were given.

    Example, a conversation of two turns:
        first = recorder.find(prompt_ids)                       # None
        recorder.answered(prompt_ids, [generation])
        recorder.answered([*prompt_ids, *generation.output_ids, *question_ids], [another])
        (trajectory,) = recorder.trajectories(1.0)
    """

    answers: list[Recorded] = field(factory=list)
    num_answers: int = 0
    """Requests that were answered; one with n answers counts once."""

    def find(self, prompt_ids: Sequence[int]) -> Recorded | None:
        """Return the answer a prompt goes on from, the one with the most tokens; None if it begins anew.

        Of answers that are the same, one that nothing goes on from yet, and the newest of those.
        """
        prompt = tuple(prompt_ids)
        fitting = (each for each in reversed(self.answers) if _begins(prompt, each.token_ids))
        return max(fitting, key=lambda each: (len(each.token_ids), not each.after), default=None)

    def answered(self, prompt_ids: Sequence[int], generations: Sequence[Generation]) -> list[Recorded]:
        """Add the answers to one prompt."""
        self.num_answers += 1
        before = self.find(prompt_ids)
        made = [
            Recorded(prompt_ids=prompt_ids, generation=each, request=self.num_answers, before=before)
            for each in generations
        ]
        if before is not None:
            before.after += made
        self.answers += made
        return made

    def begins(self, prompt_ids: Sequence[int]) -> bool:
        """Return whether an answer to a prompt begins a trajectory: it goes on from none, or another did."""
        before = self.find(prompt_ids)
        return before is None or bool(before.after)

    def num_trajectories(self, *, individual: bool = False) -> int:
        """Return how many trajectories the answers make."""
        return len(self.answers) - (0 if individual else sum(1 for each in self.answers if each.after))

    def trajectories(self, reward: float, discount: float = 1.0, *, individual: bool = False) -> tuple[Trajectory, ...]:
        """Return all answers, each trained on in exactly one trajectory, behind the tokens it was generated from.

        Where several answers go on from one, that one stays in the trajectory that was gone on with last; the others
        begin trajectories in which it is context. `individual` makes every answer a trajectory of its own.

        Args:
            discount: the reward of a trajectory that ends n requests before the last one counts this to the power of n.
        """
        lines = [[each] for each in self.answers] if individual else self._lines()
        return tuple(_joined(line, reward * discount ** (self.num_answers - line[-1].request)) for line in lines)

    def _lines(self) -> list[list[Recorded]]:
        newest: dict[Recorded, int] = {}
        for each in reversed(self.answers):  # answers behind another are newer than it
            newest[each] = max([each.request, *(newest[later] for later in each.after)])
        heirs = {each: max(each.after, key=newest.__getitem__) for each in self.answers if each.after}
        lines = []
        for each in self.answers:
            if each.before is None or heirs[each.before] is not each:
                line = [each]
                while line[-1] in heirs:
                    line.append(heirs[line[-1]])
                lines.append(line)
        return lines


def _begins(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> bool:
    return len(tokens) <= len(prompt) and prompt[: len(tokens)] == tokens


def _joined(line: Iterable[Recorded], reward: float) -> Trajectory:
    turns = TrajectoryBuilder()
    for each in line:
        turns.add_environment(each.prompt_ids[len(turns.input_ids) :])
        turns.add_generation(each.generation)
    return turns.build(reward)
