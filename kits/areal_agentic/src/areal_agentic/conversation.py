"""A conversation with the policy as exact tokens: what it said is never encoded again.

    talk = Conversation(session, renderer, [{"role": "user", "content": "2 + 2?"}])
    answer = await talk.ask()
    talk.say({"role": "user", "content": "Are you sure?"})
    await talk.ask()
    trajectories = talk.trajectories(reward=1.0)

Where the renderer has no bridge from an answer to what was said to it, the history is rendered anew and begins a new
trajectory: both are trained on as they were asked.

Knows: messages, their tokens, what was answered.
Does not know: what is said, rows of data, or what an episode is worth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field

from areal_agentic.recorder import Recorder
from areal_agentic.renderer import Answer, BoundRenderer, Message, Tool
from areal_core.contract.data import Trajectory
from areal_core.contract.errors import PromptTooLong
from areal_core.contract.inference import Generation, SamplingParams
from areal_core.contract.workflow import RewardInput, RewardResult, Session


@define(eq=False)
class Conversation:
    """Messages so far, and the tokens of every answer. One for each conversation of an episode."""

    session: Session
    renderer: BoundRenderer
    messages: list[Message]
    """Everything said so far, answers as they were read."""
    tools: Sequence[Tool] = field(default=(), kw_only=True)
    keep_thoughts: bool = field(default=False, kw_only=True)
    """Go on in one trajectory also where the template leaves thoughts of earlier turns out."""
    num_answers: int = field(default=0, init=False)
    num_restarted: int = field(default=0, init=False)
    """Answers before which the renderer had no bridge: each begins a trajectory."""
    full: bool = field(default=False, init=False)
    """The context has no room for another answer."""
    _recorder: Recorder = field(factory=Recorder, init=False)
    _prompt_ids: Sequence[int] = field(default=(), init=False)
    _last: Generation | None = field(default=None, init=False)
    _num_answered: int = field(default=0, init=False)
    """Messages that the last answer was to."""

    def say(self, *messages: Message) -> None:
        """Add what is said to the policy: messages of the roles user, tool or system."""
        self.messages += messages

    async def ask(self, read: Callable[[Sequence[int]], Awaitable[Answer]] | None = None) -> Answer | None:
        """Have the policy answer; None, and nothing said, where a context that took an answer has no room for another.

        Args:
            read: reads an output in place of the renderer's `parse`.

        Raises:
            PromptTooLong: there is no room for a first answer.
            DatasetError: the renderer has no place for a message.
            NoReplica, GenerationFailed: the fleet failed.
        """
        prompt_ids, goes_on = self._asked()
        try:
            generation = await self.session.generate(prompt_ids, ended(self.session.sampling, self.renderer))
        except PromptTooLong:
            self.full = self.num_answers > 0
            if self.full:
                return None
            raise
        self._recorder.answered(prompt_ids, [generation])
        self.num_answers += 1
        self.num_restarted += not goes_on
        self._prompt_ids, self._last, self._num_answered = prompt_ids, generation, len(self.messages)
        ids = generation.output_ids
        answer = self.renderer.parse(ids, tools=self.tools) if read is None else await read(ids)
        self.messages.append(answer.message)
        return answer

    async def score(self, row: Mapping[str, Any], prompt: str = "") -> RewardResult:
        """Have `rollout.reward` judge the last answer. Any: the data set decides what a row holds.

        Args:
            prompt: what the reward function is told was asked; empty for the row's `prompt`, or else the whole history.
        """
        assert self._last is not None, "nothing was asked"
        decode, generation = self.session.tokenizer.decode, self._last
        own = prompt or row.get("prompt")
        return await self.session.reward(
            RewardInput(
                prompt=own if isinstance(own, str) else decode(list(self._prompt_ids)),
                completion=decode(list(generation.output_ids), skip_special_tokens=True),
                completion_ids=generation.output_ids,
                stop_reason=str(generation.stop_reason),
                row=row,
            )
        )

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return what to put among the episode's metrics, as sessions of an endpoint have it."""
        return {
            "agent/requests": float(self.num_answers),
            "agent/trajectories": float(self._recorder.num_trajectories()),
            "agent/restarted": float(self.num_restarted),
        }

    def trajectories(self, reward: float) -> tuple[Trajectory, ...]:
        """Return all that the policy said, each answer on the loss mask once, with one reward."""
        return self._recorder.trajectories(reward)

    def _asked(self) -> tuple[list[int], bool]:
        """Return the tokens of the next request: the last one's, its answer's, and what was said since.

        False beside them where the renderer has no bridge, and they are the conversation rendered anew.
        """
        if self._last is not None:
            history, said = self.messages[: self._num_answered], self.messages[self._num_answered + 1 :]
            output_ids = self._last.output_ids
            keep = self.keep_thoughts
            bridge = self.renderer.bridge(history, output_ids, said, tools=self.tools, keep_thoughts=keep)
            if bridge is not None:
                return [*self._prompt_ids, *output_ids, *bridge], True
        return self.renderer.render(self.messages, tools=self.tools), self._last is None


def ended(sampling: SamplingParams, renderer: BoundRenderer) -> SamplingParams:
    """Return sampling parameters with which answers also end as the model's family ends them."""
    own = sampling.stop_token_ids
    return evolve(sampling, stop_token_ids=(*own, *sorted(renderer.stop_token_ids - set(own))))
