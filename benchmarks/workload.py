"""What the training benchmarks train: two models, long-tailed batches, and the bare PyTorch loop beside areal.

Knows: transformers and plain torch, written the way one would without areal.
Does not know: any engine of areal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from areal_core.contract.batch import Batch
from areal_tasks.tiny import make_spell_model
from areal_torch.attention import Packing, register
from areal_torch.testing.batches import make_batch
from areal_torch.testing.models import make_tiny_model

LR = 1e-3
QWEN2: Mapping[str, Mapping[str, Any]] = {
    "medium": {"hidden": 896, "layers": 24, "heads": 14},
    "large": {"hidden": 1536, "layers": 28, "heads": 12},
}
WORDS, WEIGHTS = (1, 2, 3, 4, 6), (50, 25, 12, 8, 5)
"""As in the data set `long_spell`: most answers are short, a few are long."""


def make_model(folder: Path, size: str) -> Path:
    """Write a model folder: `tiny` is the quickstart's (76k parameters), `small` has 4 million.

    `medium` and `large` are Qwen2-class models of 0.3 and 1.3 billion.
    """
    _no_progress_bars()
    if size == "tiny":
        return make_spell_model(folder / size, seed=1)
    if size in QWEN2:
        shape = {"kind": "qwen2", "vocab_size": 151936, "kv_heads": 2, "max_position": 8192}
        return make_tiny_model(folder / size, **shape, **QWEN2[size])
    return make_tiny_model(folder / size, vocab_size=2048, hidden=256, layers=6, heads=8, kv_heads=4, max_position=1024)


def long_tailed_batch(num_sequences: int, *, scale: int = 1, seed: int = 1) -> Batch:
    """Return sequences of 10 to 134 tokens (times `scale`), half of each generated, as task `long_spell` has them."""
    rng = random.Random(seed)
    shapes = []
    for _ in range(num_sequences):
        (count,) = rng.choices(WORDS, WEIGHTS)
        letters = scale * (sum(rng.randint(4, 10) for _ in range(count)) + count - 1)
        shapes.append((letters + 1, letters + 1))
    batch = make_batch(shapes, seed=seed)
    return batch.with_tokens(input_ids=batch.tokens["input_ids"] % 31)


def equal_batch(num_sequences: int, length: int, *, seed: int = 1) -> Batch:
    """Return sequences of one length, half of each generated: what padding makes of a long-tailed batch."""
    batch = make_batch([(length - length // 2, length // 2)] * num_sequences, seed=seed)
    return batch.with_tokens(input_ids=batch.tokens["input_ids"] % 31)


def by_length(batch: Batch) -> Batch:
    """Return the sequences shortest first, the order in which packed attention is fastest."""
    lengths = batch.lengths.tolist()
    return batch.select(sorted(range(len(lengths)), key=lambda row: (lengths[row], row)))


def load_bare(path: Path, *, packed: bool) -> Any:  # Any: transformers is not typed here
    """Load the model as anybody would; packed attention is areal's, so that both sides have the same kernel."""
    from transformers import AutoModelForCausalLM

    _no_progress_bars()
    attention = register() if packed else "sdpa"
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention).train()


class PackedLoss(nn.Module):
    """Mean negative log-likelihood of the marked tokens, sequences end to end."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Run one packed batch."""
        packing, ids = Packing.of(batch), batch.tokens["input_ids"]
        hidden = self.model.base_model(
            input_ids=ids[None],
            position_ids=packing.positions[None],
            attention_mask=None,
            use_cache=False,
            packing=packing,
        ).last_hidden_state[0]
        logits = self.model.lm_head(hidden.index_select(0, packing.predicted - 1))
        losses = nn.functional.cross_entropy(logits, ids[packing.predicted], reduction="none")
        mask = batch.tokens["loss_mask"][packing.predicted]
        loss: Tensor = (losses * mask).sum() / mask.sum()
        return loss


class PaddedLoss(nn.Module):
    """The same loss, sequences padded on the right to the longest."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Pad, and run one rectangle."""
        lengths = batch.lengths.tolist()
        pad = nn.utils.rnn.pad_sequence
        ids = pad(list(torch.split(batch.tokens["input_ids"], lengths)), batch_first=True)
        mask = pad(list(torch.split(batch.tokens["loss_mask"], lengths)), batch_first=True)[:, 1:]
        attended = torch.arange(ids.shape[1])[None] < batch.lengths[:, None]
        logits = self.model(input_ids=ids, attention_mask=attended.long(), use_cache=False).logits[:, :-1]
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return (losses * mask.flatten()).sum() / mask.sum()


def bare_step(loss: nn.Module, batch: Batch, parameters: Iterable[Tensor]) -> Callable[[], float]:
    """Return an action that makes one optimizer step and returns the loss."""
    held = list(parameters)
    optimizer = torch.optim.AdamW(held, lr=LR, weight_decay=0.0, fused=True)

    def step() -> float:
        value = loss(batch)
        value.backward()
        nn.utils.clip_grad_norm_(held, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value.detach())

    return step


def _no_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
