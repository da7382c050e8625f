"""What figures are told beside: transformers' own model in a plain PyTorch loop, on the same device, in one dtype.

Knows: right-padded steps with AdamW, a static batch through `generate`.
Does not know: packing, ranks, updates, or what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from areal_conformance.benches.models import quiet
from areal_core.contract.batch import Batch


def _opened(folder: Path, dtype: str, device: str) -> Any:  # Any: transformers is not typed here
    quiet()
    opened: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
    return opened.to(device)


class PlainTrainer:
    """A model, its optimizer, and the policy gradient of `areal_torch.testing.objectives`."""

    def __init__(self, folder: Path, *, dtype: str, device: str, lr: float) -> None:
        self._model, self._device = _opened(folder, dtype, device).train(), device
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=lr, weight_decay=0.1)

    def step(self, batch: Batch) -> float:
        """Make one step on the whole batch as one rectangle; return its loss."""
        ids, mask, advantages = (self._rows(batch, name) for name in ("input_ids", "loss_mask", "advantages"))
        real = self._rows(batch, "input_ids", filled=torch.ones_like).bool()
        logits = self._model(input_ids=ids, attention_mask=real.long(), use_cache=False).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(2, ids[:, 1:, None]).squeeze(2)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        trained = mask[:, 1:].bool()
        loss = -(advantages[:, 1:] * chosen + 0.01 * entropy)[trained].sum() / trained.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """Return the log-prob of each token of the batch [T], that of a sequence's first token 0."""
        ids = self._rows(batch, "input_ids")
        real = self._rows(batch, "input_ids", filled=torch.ones_like)
        logits = self._model(input_ids=ids, attention_mask=real, use_cache=False).logits[:, :-1].float()
        chosen = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        rows = torch.cat([chosen.new_zeros(len(chosen), 1), chosen], dim=1).cpu()
        return torch.cat([row[:length] for row, length in zip(rows, batch.lengths.tolist(), strict=True)])

    def _rows(self, batch: Batch, name: str, filled: Any = None) -> Tensor:  # Any: a function of a tensor
        column = batch.tokens[name]
        column = filled(column) if filled else column
        return pad_sequence(list(column.split(batch.lengths.tolist())), batch_first=True).to(self._device)


class PlainGenerator:
    """A model that answers a static batch."""

    def __init__(self, folder: Path, *, dtype: str, device: str) -> None:
        self._model, self._device = _opened(folder, dtype, device).eval(), device

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Return the log-prob of each token of an output, in float32 at least."""
        ids = torch.tensor([[*prompt, *output]], device=self._device)
        logits = self._model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen: Tensor = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        return chosen.cpu()

    def answer(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Tensor:
        """Return prompts of one length and as many new tokens each, sampled at temperature 1."""
        ids = torch.tensor(prompts, device=self._device)
        found: Tensor = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            pad_token_id=0,
        )
        return found
