"""What a person reads of an episode: its turns as text, and its row as JSON.

Knows: turns are runs of tokens that were all given, or all generated.
Does not know: where texts are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from areal_core.contract.data import Trajectory
from areal_core.contract.workflow import Tokenizer
from areal_core.plugins.redact import redact

MAX_VALUE = 20_000
"""Characters kept of one value of a row."""


def turns(trajectories: Sequence[Trajectory], tokenizer: Tokenizer) -> list[list[dict[str, str]]]:
    """Return, per trajectory, its turns in order: `given` by prompts and tools, or `generated`."""
    found, pieces = list[list[dict[str, str]]](), list[list[int]]()
    for trajectory in trajectories:
        mask, ids = trajectory.loss_mask, trajectory.input_ids.tolist()
        ends = [*((mask[1:] != mask[:-1]).nonzero().flatten() + 1).tolist(), len(ids)]
        starts = [0, *ends[:-1]]
        generated = mask[starts].tolist() if ids else []
        found.append([{"role": "generated" if own else "given", "text": ""} for own in generated])
        pieces += [ids[start:end] for start, end in zip(starts, ends, strict=True)] if ids else []
    texts = iter(_decoded(pieces, tokenizer))
    for turn in (turn for each in found for turn in each):
        turn["text"] = redact(next(texts))
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
