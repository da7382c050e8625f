"""The tokens of a trajectory as the page shows them: a piece of text, a shade, and what is known of each.

Knows: which columns can colour tokens, their shades, and where a run's tokenizer lies.
Does not know: HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch
import yaml
from attrs import evolve, frozen
from tokenizers import Tokenizer

from areal_core.contract.data import Trajectory

LOGPROB, VERSION = "logprob", "version"
MAX_SHOWN = 3_000
"""Tokens on one page."""
SHADES = 8
_LIMITS = (0.02, 0.1, 0.3, 0.7, 1.2, 2.0, 4.0)
"""Surprise (minus the log-prob) at which the next shade begins: the same in every episode and run."""
_SIGNED = {
    "advantage": (-0.9, -0.5, -0.2, 0.0, 0.2, 0.5, 0.9),
    "ratio": (0.5, 0.8, 0.95, 1.0, 1.05, 1.25, 2.0),
}
"""The same for columns with a middle: above it the upper four shades, which push a token up."""
_HALF = "\N{REPLACEMENT CHARACTER}"
"""What decodes to no letter of its own."""
_MAX_CONFIG, _MAX_TOKENIZER = 1 << 20, 200 << 20


class Decoder(Protocol):
    """What is needed of `tokenizers.Tokenizer`."""

    def decode_batch(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Return the text of many sequences."""


@frozen(kw_only=True)
class Token:
    """One token. `shade` is 0 to 7; `given` tokens have none.

    Example: Token(text=" the", shade=3, given=False, tip="id 262 · log-prob -0.51 (60%) · version 4")
    """

    text: str
    shade: int | None
    given: bool
    tip: str


def with_learned(trajectories: Sequence[Trajectory], learned: Sequence[Mapping[str, torch.Tensor]]) -> list[Trajectory]:
    """Return trajectories with what their step computed per token; a column a workflow named alike stays."""
    columns = learned if len(learned) == len(trajectories) else [{}] * len(trajectories)
    return [
        evolve(each, token_extras={**more, **each.token_extras})
        for each, more in zip(trajectories, columns, strict=True)
    ]


def columns_of(trajectory: Trajectory) -> dict[str, torch.Tensor]:
    """Return the columns that can colour tokens: log-prob, version, and whatever numbers a workflow kept per token.

    Advantage and ratio are there once a step has trained the trajectory (`with_learned`).
    """
    found = {LOGPROB: trajectory.logprobs, VERSION: trajectory.versions}
    for name, column in trajectory.token_extras.items():
        if column.dim() == 1 and len(column) == len(trajectory) and not column.is_complex():
            found[name] = column
    return found


def tokens_of(trajectory: Trajectory, column: str, decoder: Decoder | None, first: int = 0) -> list[Token]:
    """Return at most `MAX_SHOWN` tokens from the first on, coloured by a column; ids where nothing decodes them."""
    part = slice(first, first + MAX_SHOWN)
    ids, mask = trajectory.input_ids[part].tolist(), trajectory.loss_mask[part].tolist()
    columns = {name: values[part].tolist() for name, values in columns_of(trajectory).items()}
    shades = _shades(column, columns[column], mask, columns_of(trajectory)[column])
    texts = pieces(ids, decoder) if decoder is not None else [f"{token_id} " for token_id in ids]
    return [
        Token(
            text=text,
            shade=shades[number] if mask[number] else None,
            given=not mask[number],
            tip=_tip(token_id, mask[number], {name: values[number] for name, values in columns.items()}),
        )
        for number, (token_id, text) in enumerate(zip(ids, texts, strict=True))
    ]


def pieces(ids: Sequence[int], decoder: Decoder) -> list[str]:
    """Return each token's part of the text; a letter made of two tokens stands at the second.

    A token is decoded after the one before it, for many tokenizers drop the space a text begins with.
    """
    alone = decoder.decode_batch([[token_id] for token_id in ids], skip_special_tokens=False)
    pairs = decoder.decode_batch([list(pair) for pair in pairwise(ids)], skip_special_tokens=False)
    found = alone[:1]
    for number, pair in enumerate(pairs, start=1):
        before = alone[number - 1]
        if _HALF in before and _HALF not in pair:
            before = before.rstrip(_HALF)
            found[-1] = found[-1].rstrip(_HALF)
        found.append(pair[len(before) :] if pair.startswith(before) else alone[number])
    return found


def decoder_of(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a run if it lies on this machine: that of its newest checkpoint, or of its model."""
    for place in (*sorted((folder / "checkpoints").glob("step-*/model"), reverse=True)[:1], *_models_of(folder)):
        file = place / "tokenizer.json"
        with suppress(OSError):  # a name too long, a folder of somebody else
            if file.is_file() and file.stat().st_size <= _MAX_TOKENIZER:
                return _load(file, file.stat().st_mtime)
    return None


@lru_cache(maxsize=4)
def _load(file: Path, _changed: float) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # tokenizers raises plain Exception for whatever is wrong with a file
        return None


def _models_of(folder: Path) -> list[Path]:
    """Return where the model of a run may lie.

    A relative path is of the folder the run was started in, which no file names. Mostly that is one of those the run
    folder is in, the nearest first; else it may be this process's own.
    """
    try:
        with (folder / "config.yaml").open() as file:
            config = yaml.safe_load(file.read(_MAX_CONFIG))
        path = Path(config["model"]["path"]).expanduser()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, yaml.YAMLError):  # of `~nobody`: RuntimeError
        return []
    return [path] if path.is_absolute() else [place / path for place in (*folder.absolute().parents, Path.cwd())]


def _shades(name: str, values: Sequence[float], mask: Sequence[bool], whole: torch.Tensor) -> list[int]:
    if name == LOGPROB:
        return [sum(-value > limit for limit in _LIMITS) for value in values]
    if name == VERSION:
        newest = int(whole.max()) if len(whole) else 0
        return [min(SHADES - 1, max(0, newest - int(value))) for value in values]
    if name in _SIGNED:
        return [sum(value > limit for limit in _SIGNED[name]) for value in values]
    finite = [value for value, own in zip(values, mask, strict=True) if own and math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return [_place(value, low, high) for value in values]


def _place(value: float, low: float, high: float) -> int:
    if not math.isfinite(value) or high <= low:
        return 0
    return min(SHADES - 1, max(0, int((value - low) / (high - low) * SHADES)))


def _tip(token_id: int, generated: bool, values: Mapping[str, float]) -> str:
    if not generated:
        return f"id {token_id} · given"
    known = [f"id {token_id}"]
    for name, value in values.items():
        if name == LOGPROB:
            known.append(f"log-prob {value:.4g} ({math.exp(min(0.0, value)):.1%})")
        else:
            known.append(f"{name} {value:.4g}")
    return " · ".join(known)
