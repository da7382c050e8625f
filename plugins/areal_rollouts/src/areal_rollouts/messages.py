"""What the controller and a rollout process tell each other, each message as bytes of its own.

Knows: the messages, and how one becomes bytes. A message that cannot spoils no other.
Does not know: how bytes get to the other end (`line`, `process`), or what anybody does about a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attrs import fields, frozen

from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import ArealError, CodecError
from areal_core.contract.inference import Generation, GenerationRequest, SamplingParams
from areal_core.contract.optional import ToolParse
from areal_core.contract.workflow import RewardResult
from areal_local.rewards import messages


@frozen(kw_only=True)
class Make:
    """To a process: make one episode. `row` is as `messages.carried` leaves it."""

    number: int
    task_id: str
    index: int
    attempt: int
    member: int
    row: Mapping[str, Any]  # Any: the data set decides
    seed_name: str
    tag: str
    sampling: SamplingParams | None


@frozen(kw_only=True)
class Stop:
    """To a process: make that episode no more; `late` tells that its time is over. It is answered by `Made`."""

    number: int
    late: bool


@frozen(kw_only=True)
class Answer:
    """To a process: what a request of it came to, and the replica that answered last."""

    number: int
    value: Generation | ToolParse | ArealError
    home: str


@frozen(kw_only=True)
class Ask:
    """To the controller: have the fleet generate."""

    number: int
    request: GenerationRequest
    affinity: Sequence[str]


@frozen(kw_only=True)
class Parse:
    """To the controller: have a replica read an output. Any: JSON."""

    number: int
    text: str
    tools: Sequence[Mapping[str, Any]]
    affinity: Sequence[str]


@frozen(kw_only=True)
class Drop:
    """To the controller: nobody waits for that request any more."""

    number: int


class Ending(NamedTuple):
    """How the last try of an episode ended, for the store; `trajectories` are set where there is no episode."""

    ending: str
    trajectories: tuple[Trajectory, ...]
    reward: RewardResult | None
    seconds: float
    replica: str
    error: str


@frozen(kw_only=True)
class Made:
    """To the controller: what became of an episode.

    `outcome` is the episode, None if the workflow rejected the row, or the error. `num_generated` counts the tokens of
    its last try, `num_generated_in_all` those of all of them. `ending` is an `Ending` as a plain tuple, None if none is
    to be told.
    """

    number: int
    outcome: Episode | ArealError | None
    num_generated: int
    num_generated_in_all: int
    ending: tuple[Any, ...] | None  # Any: the fields of an Ending


@frozen(kw_only=True)
class Tell:
    """To the controller: an event. Any: plain data."""

    kind: str
    fields: Mapping[str, Any]


Message = Make | Stop | Answer | Ask | Parse | Drop | Made | Tell

_NAMES = {
    kind: tuple(field.name for field in fields(kind)) for kind in (Make, Stop, Answer, Ask, Parse, Drop, Made, Tell)
}
_KINDS = {kind.__name__: kind for kind in _NAMES}


def pack(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        CodecError: it holds something that does not travel; names its type.
    """
    kind = type(message)
    return messages.encode((kind.__name__, *[getattr(message, name) for name in _NAMES[kind]]))


def unpack(data: bytes) -> Message:
    """Undo `pack`.

    Raises:
        CodecError: these bytes are no message.
    """
    name, *values = messages.decode(data)
    kind = _KINDS.get(name)
    if kind is None or len(values) != len(_NAMES[kind]):
        raise CodecError(f"a message {str(name)[:80]!r} of {len(values)} fields arrived", why="there is none")
    message: Message = kind(**dict(zip(_NAMES[kind], values, strict=True)))
    return message
