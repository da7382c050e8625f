"""What a person reads of an episode: its turns as text, and its row as JSON.

Knows: turns are runs of tokens that were all given, or all generated.
Does not know: where texts are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import torch

from areal_core.contract.data import Trajectory
from areal_core.contract.workflow import Tokenizer
from areal_core.plugins.redact import redact

MAX_VALUE = 20_000
"""Characters kept of one value of a row."""


def turns(trajectories: Sequence[Trajectory], tokenizer: Tokenizer) -> list[list[dict[str, str]]]:
    """Return, per trajectory, its turns in order: `given` by prompts and tools, or `generated`."""
    found: list[list[dict[str, str]]] = [[] for _ in trajectories]
    bounds = list(accumulate(map(len, trajectories)))  # where each ends, all of them end to end
    if not bounds or not bounds[-1]:
        return found
    ids = torch.cat([trajectory.input_ids for trajectory in trajectories]).tolist()
    mask = torch.cat([trajectory.loss_mask for trajectory in trajectories])
    changes = ((mask[1:] != mask[:-1]).nonzero().flatten() + 1).tolist()
    starts = sorted({0, *changes, *bounds} - {bounds[-1]})
    pieces, number = list[tuple[int, ...]](), 0
    for start, end, own in zip(starts, [*starts[1:], bounds[-1]], mask[starts].tolist(), strict=True):
        while start >= bounds[number]:
            number += 1
        found[number].append({"role": "generated" if own else "given", "text": ""})
        pieces.append(tuple(ids[start:end]))
    distinct = list(dict.fromkeys(pieces))  # members of a group have their prompt in common
    texts = dict(zip(distinct, map(redact, _decoded(distinct, tokenizer)), strict=True))
    for turn, piece in zip(chain.from_iterable(found), pieces, strict=True):
        turn["text"] = texts[piece]
    return found


def _decoded(pieces: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[str]:
    """Return the text of many pieces, special tokens and all; at once where the tokenizer can."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        texts: list[str] = backend.decode_batch(pieces, skip_special_tokens=False)
        return texts
    return [tokenizer.decode(list(piece), skip_special_tokens=False) for piece in pieces]


def row_as_json(row: Mapping[str, Any]) -> str:
    """Return a row as JSON: secrets redacted, binary and long values cut. Any: the data set decides."""
    return json.dumps(redact(_plain(row)), default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, str):
        return value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]} ... {len(value) - MAX_VALUE} more"
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if isinstance(value, Sequence):
        return [_plain(item) for item in value[:MAX_VALUE]]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:MAX_VALUE]
