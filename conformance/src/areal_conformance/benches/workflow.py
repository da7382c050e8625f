"""What a check of a workflow is given: the workflow, and sessions whose generations and rewards follow a script.

The tokenizer merges "ab" and "ba", and every scripted output holds the two letters apart: ids that are decoded and
encoded again come back as others. It has a token that stands for an image; a session refuses, as engines do, another
number of images than of those.

Knows: how an episode's session behaves, what it was asked, and how an episode is compared with that.
Does not know: how a workflow makes episodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import tokenizers
from attrs import Factory, define, evolve, field, frozen
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from areal_conformance.adapter import Tolerance
from areal_conformance.benches.base import Bench
from areal_conformance.outcome import Exempt, Inconclusive, Violation, expect
from areal_conformance.target import Target
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.errors import BatchError
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, Structure, VersionSpan
from areal_core.contract.optional import ToolParse
from areal_core.contract.trajectory import NO_VERSION
from areal_core.contract.workflow import RewardInput, RewardResult, RolloutWorkflow, Tokenizer

E = TypeVar("E", bound=Exception)

SAMPLING = SamplingParams(max_new_tokens=23, temperature=0.7, stop_token_ids=(4,))
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}>"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|image_pad|>-{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "-{% endfor %}"
    "{% if add_generation_prompt %}a>{% endif %}"
)
_MERGED = ("ab", "ba")
PLACEHOLDER = "<|image_pad|>"
"""The token that stands for an image, as it is written in a prompt."""


@frozen(kw_only=True)
class Asked:
    """One call of `generate`, and what it gave."""

    input_ids: tuple[int, ...]
    sampling: SamplingParams | None
    images: tuple[bytes, ...] = ()
    adapter: str = ""
    structure: Structure | None = None
    generation: Generation | None = None


Script = Callable[[int], Generation | BaseException]
"""Which turn -> what comes of it."""
Judge = Callable[[RewardInput], RewardResult | BaseException]


@define(kw_only=True)
class ScriptedSession:
    """Satisfies `contract.Session`. Waits at its gates, if it has some, before it answers."""

    script: Script
    judge: Judge
    tokenizer: Tokenizer
    task_id: TaskId = TaskId("train/2/7")
    group_id: GroupId = GroupId("group of train/2/7")
    sampling: SamplingParams = SAMPLING
    image_token_id: int | None = field(factory=lambda: placeholder_id())
    at_generate: Callable[[int], Awaitable[object]] | None = None
    at_reward: Callable[[], Awaitable[object]] | None = None
    reads: Callable[[str], ToolParse | BaseException] = lambda text: ToolParse(content=text)
    """What the engine's own parser makes of an output: no call, unless a check says otherwise."""
    asked: list[Asked] = Factory(list)
    scored: list[RewardInput] = Factory(list)
    cancelled: int = 0
    begun: int = 0
    """Calls of `generate` and `reward` that were begun."""
    _turns: Any = field(init=False, factory=itertools.count)

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        structure: Structure | None = None,
        images: Sequence[bytes] = (),
        adapter: str = "",
    ) -> Generation:
        """Give the script's generation of this turn; that of an adapter is of no version of the policy."""
        turn, ids, shown = next(self._turns), tuple(input_ids), tuple(images)
        self.begun += 1
        await self._wait(None if self.at_generate is None else self.at_generate(turn))
        places = 0 if self.image_token_id is None else ids.count(self.image_token_id)
        outcome = self.script(turn)
        if places != len(shown):
            told = f"{len(shown)} images for {places} tokens that stand for one"
            outcome = BatchError(f"turn {turn} was asked with {told}")
        made = None if isinstance(outcome, BaseException) else outcome
        if adapter and made is not None:
            spans = [evolve(span, version=NO_VERSION) for span in made.version_spans]
            outcome = made = evolve(made, version_spans=spans)
        self.asked.append(
            Asked(input_ids=ids, sampling=sampling, images=shown, adapter=adapter, structure=structure, generation=made)
        )
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def parse_tool_calls(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolParse:
        """Read an output as the script says. Any: JSON."""
        found = self.reads(text)
        if isinstance(found, BaseException):
            raise found
        return found

    async def reward(self, value: RewardInput) -> RewardResult:
        """Give the judge's result."""
        self.begun += 1
        await self._wait(None if self.at_reward is None else self.at_reward())
        self.scored.append(value)
        outcome = self.judge(value)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _wait(self, gate: Awaitable[object] | None) -> None:
        if gate is None:
            await asyncio.sleep(0)
            return
        try:
            await gate
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@functools.cache
def drifting_tokenizer() -> Any:
    """Return a tokenizer of a-z, ">" and "-" that merges "ab" and "ba". Any: transformers is not typed here."""
    tokens = ("<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz>-", *_MERGED, PLACEHOLDER)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = BPE(vocabulary, [(pair[0], pair[1]) for pair in _MERGED], unk_token="<unk>", fuse_unk=False)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=[PLACEHOLDER],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made


def placeholder_id() -> int:
    """Return the id of the token that stands for an image."""
    return int(drifting_tokenizer().convert_tokens_to_ids(PLACEHOLDER))


def generation(number: int = 0, *, length: int = 6, stop: StopReason = StopReason.STOP, **fields: Any) -> Generation:
    """Return a generation like no other of another number, in three versions, which does not survive re-encoding.

    Any: fields of Generation to set.
    """
    letters = [3 + (number * 5 + position * 7) % 26 for position in range(length)]
    output = ([3, 4, *letters] if length > 4 else letters)[:length]
    if stop is StopReason.STOP and length > 1:
        output[-1] = 1
    cuts = sorted({0, length // 3, 2 * length // 3, length})
    spans = [
        VersionSpan(start=start, stop=end, version=2 * number + 3 + index)
        for index, (start, end) in enumerate(itertools.pairwise(cuts))
    ]
    logprobs = [-(1 + number) / 8 - position / 64 for position in range(length)]
    given: dict[str, Any] = {"output_ids": output, "logprobs": logprobs, "version_spans": spans, "stop_reason": stop}
    return Generation(**{**given, **fields})


def scripted(first: int = 0, **fields: Any) -> Script:
    """Return a script whose turns are generations numbered from `first` on. Any: what `generation` takes."""
    return lambda turn: generation(first + turn, **fields)


def failing(error: BaseException) -> Script:
    """Return a script in which every generation fails."""
    return lambda _turn: error


def judging(outcome: RewardResult | BaseException) -> Judge:
    """Return a judge of one outcome."""
    return lambda _value: outcome


def paying(value: float = 0.625, **fields: Any) -> Judge:
    """Return a judge that gives one result. Any: fields of RewardResult."""
    return lambda _: RewardResult(value=value, **fields)


class WorkflowBench(Bench):
    """One workflow instance for all checks of a session of the suite: it serves every episode of a run."""

    _workflow: RolloutWorkflow | None = None
    _of: Target | None = None

    @property
    def workflow(self) -> RolloutWorkflow:
        """Return the workflow, the same for every check."""
        if self._workflow is None or self._of is not self.target:
            self._workflow, self._of = self.fresh(), self.target
        return self._workflow

    def fresh(self) -> RolloutWorkflow:
        """Return another instance."""
        made: RolloutWorkflow = self.build("multi_turn")
        return made

    @property
    def rows(self) -> tuple[Mapping[str, Any], ...]:
        """Return copies of the adapter's rows. Any: the workflow decides."""
        return copy.deepcopy(self.target.adapter.rows)

    def shown_rows(self, *images: bytes) -> list[Mapping[str, Any]]:
        """Return rows with these images: before a text `prompt` a token for each, or `messages` as they are.

        Any: the workflow decides. Inconclusive if no row of the adapter has a text `prompt`.
        """
        apart = "".join(f"{PLACEHOLDER}-" for _ in images)
        texts = [row for row in self.rows if isinstance(row.get("prompt"), str)]
        if not texts:
            raise Inconclusive("no row of the adapter has a text `prompt` that images could stand in")
        rows = [{**row, "prompt": apart + row["prompt"], "images": list(images)} for row in texts]
        return rows + [{**row, "images": list(images)} for row in self.rows if "messages" in row]

    def session(self, script: Script | None = None, judge: Judge | None = None, **fields: Any) -> ScriptedSession:
        """Return a session; without a script every turn gives the generation of its number. Any: its fields."""
        return ScriptedSession(
            script=script or generation, judge=judge or paying(), tokenizer=drifting_tokenizer(), **fields
        )

    async def run(self, session: ScriptedSession, row: Mapping[str, Any] | None = None) -> Any:
        """Make one episode and return what the workflow returned. Any: checks look at the type."""
        given = self.rows[0] if row is None else row
        made = await self.soon(self.workflow.arun_episode(session, given), "an episode that waits for nobody")
        if session.scored and not self.target.adapter.scoring.asks:
            raise Violation("its adapter says that it asks its session for no reward, and it asked for one")
        return made

    async def episode(self, session: ScriptedSession, row: Mapping[str, Any] | None = None) -> Episode:
        """Make one episode as the executor does, a single trajectory wrapped; Violation if there is none."""
        return self._wrapped(await self.run(session, row), session)

    async def adapted(self, session: ScriptedSession, row: Mapping[str, Any]) -> Episode:
        """Make one episode of an instance that was told to ask an adapter. Any: the workflow decides."""
        workflow: RolloutWorkflow = self.build("adapters")
        return self._wrapped(
            await self.soon(workflow.arun_episode(session, row), "an episode with an adapter"), session
        )

    def _wrapped(self, made: Any, session: ScriptedSession) -> Episode:  # Any: what a workflow returned
        if isinstance(made, Trajectory):
            return Episode(trajectories=(made,), task_id=session.task_id, group_id=session.group_id)
        if made is None:
            raise Violation("a row whose generations and rewards are all in order was rejected (None)")
        if not isinstance(made, Episode):
            raise Violation(f"the workflow returned a {type(made).__name__}, no Episode, Trajectory or None")
        if not made.trajectories:
            raise Violation("the episode holds no trajectory")
        return made

    async def failure(
        self, kind: type[E], session: ScriptedSession, what: str, row: Mapping[str, Any] | None = None
    ) -> E:
        """Return what an episode that has to fail raises: an error of this kind, or Violation."""
        try:
            made = await self.run(session, row)
        except Violation:
            raise
        except Exception as error:
            if not isinstance(error, kind):
                raise Violation(f"{what}: {kind.__name__} was due, not {type(error).__name__}: {error}") from error
            return error
        if made is None:
            raise Violation(f"{what}: the row was rejected (None) instead of failing")
        rewards = [t.reward for t in (made.trajectories if isinstance(made, Episode) else (made,))]
        raise Violation(f"{what}: an episode with rewards {rewards} was made instead of failing")

    async def ended_by(self, session: ScriptedSession, stop: StopReason) -> Episode | None:
        """Return what is made of outputs that end in this way; None where they are rejected, as all may but `stop`.

        Of the others only an aborted one may be an error.
        """
        try:
            made = await self.run(session)
        except Violation:
            raise
        except Exception as error:
            expect(stop is StopReason.ABORTED, f"an output that ended with {stop!s} raised {error!r}")
            return None
        if made is not None:
            return self._wrapped(made, session)
        expect(stop is not StopReason.STOP, "an output that ended with an end token was rejected")
        self.notes.append(f"rejects outputs that ended with {stop!s}")
        return None

    @contextlib.asynccontextmanager
    async def no_task_left(self) -> AsyncIterator[None]:
        """Expect the block to leave no task behind; what the instance begins with its first episode is its own."""
        with contextlib.suppress(Exception):  # whatever is wrong with an episode, the block tells
            await self.run(self.session())
        before = asyncio.all_tasks()
        yield
        for _ in range(20):
            await asyncio.sleep(0)
        left = [task.get_name() for task in asyncio.all_tasks() - before if not task.done()]
        if left:
            raise Violation(f"tasks left behind by an episode: {left}")

    def worth(self, episode: Episode, value: float, tolerance: Tolerance | None = None) -> bool:
        """Tell whether trajectories have the rewards they are due where each that was asked for is `value`."""
        allowed = tolerance or Tolerance()
        due = self.target.adapter.scoring.worth(value)
        seen = [trajectory.reward for trajectory in episode.trajectories]
        near = [[abs(a - b) <= allowed.atol + allowed.rtol * abs(b) for b in due] for a in seen]
        return all(map(any, near)) and all(map(any, zip(*near, strict=True)))

    @property
    def adds(self) -> tuple[str, ...]:
        """Return the columns that the reward is told beside those of the row."""
        return self.target.adapter.scoring.adds

    def scored(self, session: ScriptedSession) -> RewardInput:
        """Return what the reward was asked last.

        Raises:
            Exempt, Inconclusive: this workflow never asks.
        """
        if not session.scored:
            raise self.unscored()
        return session.scored[-1]

    def unscored(self) -> Exempt | Inconclusive:
        """Return what says that this workflow asks for no reward: what it is not held to, if its adapter says so."""
        if not self.target.adapter.scoring.asks:
            return Exempt("asks its session for no reward, as its adapter says")
        why = "this workflow does not ask its session for a reward"
        return Inconclusive(f"{why}; one that never does says so in its adapter: scoring=Scoring(asks=False)")


def read_only(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row nobody can change at its top. Any: the workflow decides."""
    return MappingProxyType(dict(row))
