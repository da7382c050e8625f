"""Episodes on their way to the disk: what each table gets of them.

Knows: what every column says.
Does not know: when anything is written (`store`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_core.contract.workflow import Tokenizer
from areal_core.plugins.episodes import EndedEpisode, Ending, Fate
from areal_core.plugins.redact import redact
from areal_episodes.columns import Packed, checksum, to_bytes
from areal_episodes.text import row_as_json, turns


@frozen(kw_only=True)
class Chunk:
    """What the tables get: one blob; rows of tasks; per episode its facts, and its trajectories in the blob."""

    episodes: Sequence[EndedEpisode]
    columns: bytes
    checksum: str
    tasks: Mapping[str, str]
    rows: Sequence[tuple[Sequence[Any], int, int]]  # Any: as SQLite takes them


def make_chunk(episodes: Sequence[EndedEpisode], tokenizer: Tokenizer) -> Chunk:
    """Return the chunk of some episodes."""
    trajectories = [trajectory for episode in episodes for trajectory in episode.trajectories]
    packed = Packed.of(trajectories)
    generated, lengths = packed.generated(), packed.lengths.tolist()
    texts = turns(trajectories, tokenizer)
    rows, first = list[tuple[Sequence[Any], int, int]](), 0
    for episode in episodes:
        count = len(episode.trajectories)
        own = slice(first, first + count)
        facts = _facts(episode, generated[own], sum(lengths[own]), json.dumps(texts[own]))
        rows.append((facts, first, count))
        first += count
    blob = to_bytes(trajectories, packed)
    distinct = {episode.task_id: episode.row for episode in episodes}
    return Chunk(
        episodes=episodes,
        columns=blob,
        checksum=checksum(blob),
        tasks={task_id: row_as_json(row) for task_id, row in distinct.items()},
        rows=rows,
    )


def _facts(
    episode: EndedEpisode, generated: Sequence[tuple[int, int | None, int | None]], num_tokens: int, text: str
) -> Sequence[Any]:
    """Return `schema.COLUMNS` but the place in the chunk. Any: as SQLite takes them."""
    trained = episode.task_index >= 0
    finished = episode.ending is Ending.FINISHED
    fate = (Fate.WAITING if trained else Fate.EVALUATED) if finished else Fate(episode.ending.value)
    output_tokens = sum(number for number, _, _ in generated)
    oldest = [version for _, version, _ in generated if version is not None]
    newest = [version for _, _, version in generated if version is not None]
    rewards = [trajectory.reward for trajectory in episode.trajectories]
    return (
        *("train" if trained else "eval", episode.task_id, episode.task_index, episode.attempt, episode.member),
        *(episode.version, episode.ending.value, fate.value),
        sum(rewards) / len(rewards) if finished else None,
        json.dumps(dict(episode.metrics)) if episode.metrics else "{}",
        "" if episode.reward is None else episode.reward.status,
        *(num_tokens - output_tokens, output_tokens, min(oldest, default=None), max(newest, default=None)),
        str(episode.trajectories[-1].stop_reason) if episode.trajectories else "",
        *(episode.started, episode.seconds, episode.replica, redact(episode.error), text),
    )
