"""One forward of the model over a packed step: prompt tokens first, then one token per row.

Knows: how a step becomes index tensors, and how to keep shapes fixed in deterministic mode.
Does not know: requests, sampling or time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from areal_reference.infer.attention import AttentionStep, PrefixCopy, PromptLayout
from areal_reference.infer.cache import CacheSlab
from areal_reference.infer.forward import PLAIN_ARCHITECTURES, Forward, OwnForward, PlainForward
from areal_reference.infer.loading import PROBE_TOKENS, LoadedModel

Ints = NDArray[np.int64]
LENGTH_BUCKET = 64
"""Deterministic mode reads the cache in multiples of this, chosen by the row's own length alone."""
SAME_LOGITS, SAME_LOGITS_OF_HALF = 1e-5, 1e-2
"""How far two forwards of one model may differ, as a share of the largest logit: in float32, in 16 bits."""


@frozen(kw_only=True, eq=False)
class StepWork:
    """What one step computes.

    `tokens`, `positions` [R]: the last token of every row and where it stands. `prompts`: (row, its first
    token ids) to be cached from position 0. `copies`: (source row, target row, length) of shared prefixes.
    """

    tokens: Ints
    positions: Ints
    prompts: Sequence[tuple[int, Sequence[int]]] = field(default=())
    copies: Sequence[tuple[int, int, int]] = field(default=())
    rows: Ints | None = None
    """Which rows these are; None for all, in order."""

    def part(self, rows: Ints) -> StepWork:
        """Return what the step computes for some of all rows."""
        return StepWork(
            tokens=self.tokens[rows],
            positions=self.positions[rows],
            prompts=[prompt for prompt in self.prompts if prompt[0] in rows],
            copies=[copy for copy in self.copies if copy[1] in rows],
            rows=rows,
        )


class ModelRunner:
    """Runs the model against the slab. All calls come from the compute thread."""

    def __init__(self, loaded: LoadedModel, cache: CacheSlab) -> None:
        self.device, self._dtype, self.cache, self.vocabulary = loaded.device, loaded.dtype, cache, loaded.vocabulary
        self._head_counts = sorted({layer.num_heads for layer in cache.layers})
        self._compute: Forward = OwnForward(loaded.model)
        if type(loaded.model).__name__ in PLAIN_ARCHITECTURES:
            self._shorten(PlainForward(loaded.model))

    @property
    def is_plain(self) -> bool:
        """Whether the layers are computed without what transformers does around them."""
        return isinstance(self._compute, PlainForward)

    @torch.inference_mode()
    def _shorten(self, plain: PlainForward) -> None:
        """Compute with it from now on if a few tokens have the logits that the model's own forward gives them."""
        ids = np.arange(min(PROBE_TOKENS, self.cache.max_length)) % self.vocabulary
        own_forward = self._compute
        own = self._alone(self.cache.scratch, ids, keep=len(ids))
        self._compute = plain
        short = self._alone(self.cache.scratch, ids, keep=len(ids))
        close = SAME_LOGITS if own.dtype == torch.float32 else SAME_LOGITS_OF_HALF
        if not bool(((own - short).abs() <= close * own.abs().max()).all()):
            self._compute = own_forward

    @torch.inference_mode()
    def logits(self, work: StepWork) -> Tensor:
        """Return logits [R, V] for the token after each row's last one, in one forward."""
        num_rows = len(work.tokens)
        lengths = [len(ids) for _, ids in work.prompts]
        rows = np.arange(num_rows) if work.rows is None else work.rows
        slots, positions, tokens = rows, work.positions, work.tokens
        if lengths:
            prompt_rows = np.repeat([row for row, _ in work.prompts], lengths)
            slots = np.concatenate([prompt_rows, rows])
            positions = np.concatenate([*map(np.arange, lengths), work.positions])
            tokens = np.concatenate([*(np.asarray(ids, dtype=np.int64) for _, ids in work.prompts), work.tokens])
        length = int(work.positions.max()) + 1
        step = AttentionStep(
            keys=self.cache.keys,
            values=self.cache.values,
            write=self._write_index(slots, positions),
            bias=self._bias(work.positions, length),
            num_rows=num_rows,
            length=length,
            rows=None if work.rows is None else self._put(work.rows),
            prompts=self._prompt_layout(lengths) if lengths else None,
            copies=self._prefix_copy(work.copies) if work.copies else None,
        )
        return self._forward(tokens, positions, step, num_rows)

    @torch.inference_mode()
    def fill_alone(self, prompts: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Cache prompts one forward each, so that a prompt's entries depend on itself alone."""
        for row, ids in prompts:
            self._alone(row, ids, keep=1)

    @torch.inference_mode()
    def scores(self, ids: Sequence[int], temperature: float) -> list[float]:
        """Return log p(token t | tokens < t) for each token, 0.0 for the first."""
        self.cache.grow(0, len(ids))
        logits = self._alone(self.cache.scratch, ids, keep=len(ids))[:-1].float() / temperature
        found: list[float] = logits.log_softmax(-1).gather(1, self._put(np.asarray(ids[1:]))[:, None])[:, 0].tolist()
        return [0.0, *found]

    def _alone(self, row: int, ids: Sequence[int] | Ints, *, keep: int) -> Tensor:
        """Compute one sequence from its beginning, cached at a row; return the logits of its last `keep` tokens."""
        tokens, positions = np.asarray(ids, dtype=np.int64), np.arange(len(ids))
        step = AttentionStep(
            keys=self.cache.keys,
            values=self.cache.values,
            write=self._write_index(np.full(len(ids), row), positions),
            bias={},
            num_rows=0,
            length=0,
            prompts=self._prompt_layout([len(ids)]),
        )
        return self._forward(tokens, positions, step, keep)

    def copy_prefixes(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Share prefixes outside a forward (deterministic mode)."""
        for source, target, length in copies:
            self.cache.move([source], [target], length)

    def tiles(self, positions: Ints, tile: int) -> list[Ints]:
        """Cut rows into tiles of at most `tile` rows whose caches are read at the same length."""
        buckets = positions // LENGTH_BUCKET
        order = np.argsort(buckets, kind="stable")
        cuts = np.flatnonzero(np.diff(buckets[order])) + 1
        return [part[i : i + tile] for part in np.split(order, cuts) for i in range(0, len(part), tile)]

    @torch.inference_mode()
    def tile_logits(self, rows: Ints, tokens: Ints, positions: Ints, tile: int) -> Tensor:
        """Return logits [tile, V padded to 16] of one tile, always of the same shape per length bucket.

        Missing rows compute on the scratch row; whoever calls drops them.
        """
        missing = tile - len(rows)
        rows = np.concatenate([rows, np.full(missing, self.cache.scratch)])
        tokens = np.concatenate([tokens, np.zeros(missing, dtype=np.int64)])
        positions = np.concatenate([positions, np.full(missing, positions[0])])
        length = (int(positions[0]) // LENGTH_BUCKET + 1) * LENGTH_BUCKET
        step = AttentionStep(
            keys=self.cache.keys,
            values=self.cache.values,
            write=self._write_index(rows, positions),
            bias=self._bias(positions, length),
            num_rows=tile,
            length=length,
            rows=self._put(rows),
        )
        logits = self._forward(tokens, positions, step, tile)
        return torch.nn.functional.pad(logits, (0, -logits.shape[1] % 16), value=float("-inf"))

    def _forward(self, tokens: Ints, positions: Ints, step: AttentionStep, keep: int) -> Tensor:
        return self._compute(self._put(tokens), self._put(positions), step, keep)

    def _write_index(self, slots: Ints, positions: Ints) -> dict[int, Tensor]:
        """Return, per number of heads K, the flat cache rows [T * K] of tokens at (slot, position)."""
        index = {}
        for heads in self._head_counts:
            flat = (slots[:, None] * heads + np.arange(heads)) * self.cache.length + positions[:, None]
            index[heads] = self._put(flat.reshape(-1))
        return index

    def _bias(self, positions: Ints, length: int) -> dict[int, Tensor]:
        """Return, per number of heads K, the mask [R * K, 1, L] that hides what lies beyond each row's token."""
        beyond, bias = np.arange(length) > positions[:, None], {}
        for heads in self._head_counts:
            hidden = np.zeros((len(positions), heads, length), dtype=np.float32)
            np.copyto(hidden, np.float32("-inf"), where=beyond[:, None])
            bias[heads] = self._put(hidden.reshape(-1, 1, length)).to(self._dtype)
        return bias

    def _put(self, array: NDArray[Any]) -> Tensor:  # Any: integers or floats
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def _prompt_layout(self, lengths: Sequence[int]) -> PromptLayout:
        width, sizes = max(lengths), np.asarray(lengths)
        starts = np.cumsum(sizes) - sizes
        gather = starts[:, None] + np.minimum(np.arange(width), sizes[:, None] - 1)
        scatter = np.flatnonzero(np.arange(width) < sizes[:, None])
        return PromptLayout(
            num_tokens=int(sizes.sum()),
            num_prompts=len(lengths),
            width=width,
            gather=self._put(gather.reshape(-1)),
            scatter=self._put(scatter),
        )

    def _prefix_copy(self, copies: Sequence[tuple[int, int, int]]) -> PrefixCopy:
        source, target, length = zip(*copies, strict=True)
        return PrefixCopy(
            source=torch.tensor(source, device=self.device),
            target=torch.tensor(target, device=self.device),
            length=max(length),
        )


def largest_invariant_tile(run: Callable[[int, int], Tensor], candidates: Sequence[int]) -> int:
    """Return the largest tile whose rows do not feel their place or their neighbours; 1 always qualifies.

    Args:
        run: (tile, shift) -> outputs [tile, ...] of the same rows rotated by `shift`, rotated back.
        candidates: tile sizes to try, largest first.
    """
    for tile in candidates:
        straight = run(tile, 0)
        if all(torch.equal(straight, run(tile, shift)) for shift in (1, tile // 2, tile - 1)):
            return tile
    return 1
