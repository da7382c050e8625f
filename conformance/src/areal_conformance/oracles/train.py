"""What a train engine must compute, by transformers' own forward pass: float64, one sequence at a time.

No packing, no micro-batches, no kernels of anybody: a sequence is run alone, its logits are divided by the
temperature, and `torch.log_softmax` and autograd do the rest.

Knows: transformers models, the alignment of columns, losses of whole batches.
Does not know: optimizers (`oracles.train_optimizer`) or engines.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from areal_conformance.benches.models import quiet
from areal_core.contract.batch import Batch
from areal_core.contract.train import CANDIDATES, Head, Objective, Output, Sum


@frozen(kw_only=True, eq=False)
class Gradient:
    """Loss, metrics and gradient of one whole batch, in float64."""

    loss: float
    metrics: Mapping[str, Sum]
    by_name: Mapping[str, Tensor]

    @property
    def norm(self) -> float:
        """Return the norm over all parameters."""
        return math.sqrt(sum(float(gradient.square().sum()) for gradient in self.by_name.values()))


class Oracle:
    """A model folder, run the slow way."""

    def __init__(
        self,
        folder: Path,
        *,
        head: Head = Head.CAUSAL_LM,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        quiet()
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self._temperature, self._head, self._dtype = temperature, head, dtype
        self.model: Any = self.opened(folder).eval()  # Any: transformers is not typed here

    def opened(self, folder: Path) -> Any:
        """Open the folder. Any: transformers is not typed here."""
        kind: Any = AutoModelForCausalLM if self._head is Head.CAUSAL_LM else AutoModelForTokenClassification
        return kind.from_pretrained(
            folder,
            dtype=self._dtype,
            attn_implementation="eager",
            experts_implementation="eager",
            local_files_only=True,
        )

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters under their Hugging Face names, tied ones once; fused experts as views, one each."""
        return self.stored(dict(self.model.named_parameters()))

    def load(self, weights: Mapping[str, Tensor]) -> Oracle:
        """Take these weights instead; every parameter must be among them."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name].to(torch.float64))
        return self

    def columns(self, batch: Batch) -> dict[Output, Tensor]:
        """Return every column the head gives, float64 [T] with gradient, zero where the contract says so."""
        if self._head is Head.VALUE:
            return {Output.VALUES: self._values(batch)}
        parts: dict[Output, list[Tensor]] = {Output.LOGPROBS: [], Output.ENTROPY: []}
        zero = torch.zeros(1, dtype=self._dtype)
        for row in range(batch.num_sequences):
            one = batch.select([row])
            ids, mask = one.tokens["input_ids"], one.tokens["loss_mask"][1:]
            log_p = (self.logits(one, ids)[:-1] / self._temperature).log_softmax(-1)
            parts[Output.LOGPROBS].append(torch.cat([zero, log_p.gather(1, ids[1:, None]).squeeze(1) * mask]))
            parts[Output.ENTROPY].append(torch.cat([zero, -(log_p.exp() * log_p).sum(-1) * mask]))
            if CANDIDATES in one.tokens.keys():  # noqa: SIM118  TensorDict iterates over rows
                asked = one.tokens[CANDIDATES].long()
                judged = log_p.gather(1, asked[1:].clamp(min=0)) * mask[:, None]
                parts.setdefault(Output.CANDIDATE_LOGPROBS, []).append(
                    torch.cat([judged.new_zeros(asked[:1].shape), judged])
                )
        return {name: torch.cat(column) for name, column in parts.items()}

    def most_probable(self, batch: Batch, count: int) -> Tensor:
        """Return the `count` most probable tokens at each place, int64 [T, count]; -1 at the first of a sequence."""
        parts = []
        for row in range(batch.num_sequences):
            one = batch.select([row])
            found = self.logits(one, one.tokens["input_ids"])[:-1].topk(count).indices
            parts.append(torch.cat([found.new_full((1, count), -1), found]))
        return torch.cat(parts)

    def logits(self, one: Batch, ids: Tensor) -> Tensor:
        """Return logits [L, V] of a single sequence."""
        found: Tensor = self.model(input_ids=ids[None]).logits[0]
        return found

    def stored(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of parameters under the names a folder has."""
        return in_folder(named)

    def gradient(self, batch: Batch, objective: Objective) -> Gradient:
        """Return loss and gradient of the whole batch at once."""
        self.model.zero_grad(set_to_none=True)
        columns = {str(name): column for name, column in self.columns(batch).items()}
        loss, metrics = objective.loss(columns, batch, objective.normalizer(batch).double())
        loss.backward()  # type: ignore[no-untyped-call]
        by_name = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for name, parameter in self.model.named_parameters()
        }
        self.model.zero_grad(set_to_none=True)
        return Gradient(loss=float(loss.detach()), metrics=metrics, by_name=self.stored(by_name))

    def _values(self, batch: Batch) -> Tensor:
        parts = []
        for start, stop in itertools.pairwise(batch.cu_seqlens.tolist()):
            scores = self.model(input_ids=batch.tokens["input_ids"][start:stop][None]).logits[0, :, 0]
            parts.append(torch.cat([torch.zeros(1, dtype=torch.float64), scores[:-1]]))
        return torch.cat(parts)


def in_folder(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return views of parameters under the names a folder has: one tensor per expert, where they are fused."""
    named: dict[str, Tensor] = {}
    for name, tensor in parameters.items():
        prefix, fused, kind = name.rpartition("experts.")
        if not fused:
            named[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            halves = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
            kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
            named |= {f"{prefix}experts.{expert}.{k}.weight": half for k, half in zip(kinds, halves, strict=True)}
    return named
