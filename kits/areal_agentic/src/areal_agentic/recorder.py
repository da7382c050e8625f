"""What the policy said in one episode, as exact tokens: requests become trajectories without decoding anything.

A request whose prompt begins with all tokens of an earlier answer goes on in that answer's trajectory. Any other one
begins a new trajectory: histories that were edited, cut or re-tokenized otherwise never drift, they start again.

Knows: tokens, and which request follows which.
Does not know: text, chat templates or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation
from areal_core.contract.trajectory import TrajectoryBuilder


@define
class Branch:
    """One trajectory so far, and the number of the request that was added last."""

    turns: TrajectoryBuilder
    last: int
    held: bool = False
    """A request that goes on from here is being generated."""


@define
class Recorder:
    """Requests of one episode in the order in which they were answered."""

    branches: list[Branch] = field(factory=list)
    num_answers: int = 0
    num_begun: int = 0
    """Trajectories begun although there was one already: another conversation, or a history that was changed."""

    def begin(self, prompt_ids: Sequence[int]) -> Branch | None:
        """Return the branch that a prompt goes on from, held until it is answered; the longest, None for none."""
        prompt = tuple(prompt_ids)
        fitting = [
            branch
            for branch in self.branches
            if not branch.held and prompt[: len(branch.turns.input_ids)] == branch.turns.input_ids
        ]
        found = max(fitting, key=lambda branch: len(branch.turns.input_ids), default=None)
        if found is not None:
            found.held = True
        return found

    def answered(self, branch: Branch | None, prompt_ids: Sequence[int], generations: Sequence[Generation]) -> None:
        """Add the answers to one prompt; the first goes on in the branch, the others are trajectories of their own."""
        self.num_answers += 1
        for number, generation in enumerate(generations):
            if branch is not None and number == 0:
                branch.turns.add_environment(prompt_ids[len(branch.turns.input_ids) :])
                branch.turns.add_generation(generation)
                branch.last, branch.held = self.num_answers, False
                continue
            self.num_begun += bool(self.branches)
            turns = TrajectoryBuilder(prompt_ids)
            turns.add_generation(generation)
            self.branches.append(Branch(turns, self.num_answers))

    def release(self, branch: Branch | None) -> None:
        """Let others go on from a branch whose request was not answered."""
        if branch is not None:
            branch.held = False

    def trajectories(self, reward: float, discount: float) -> tuple[Trajectory, ...]:
        """Return all of them with the reward of the episode, less for those that ended early."""
        return tuple(
            branch.turns.build(reward * discount ** (self.num_answers - branch.last)) for branch in self.branches
        )
