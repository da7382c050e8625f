"""The truth an inference engine is compared with: transformers' own forward, eager attention and experts, no batch.

Knows: one sequence at a time, under the folder's weights or any others of the same shapes.
Does not know: engines, versions, or tolerances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from transformers import DynamicCache

from areal_torch.testing.serving import model_of


@frozen
class Segment:
    """Output tokens [start, stop) were computed by `weights`; None are the folder's own."""

    start: int
    stop: int
    weights: Mapping[str, Tensor] | None = None


class Oracle:
    """A model folder, loaded once, computed in float32 or float64."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        opened = model_of(folder, dtype, attn_implementation="eager", experts_implementation="eager")
        self._model: Any = opened.eval()  # Any: transformers
        self._dtype = dtype

    def logits(self, ids: Sequence[int], weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return logits [L, V] of a sequence, in the oracle's dtype."""
        return self._forward(ids, weights, None)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return what greedy decoding gives, without a cache."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(prompt) :]

    def logprobs(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        *,
        temperature: float = 1.0,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return log p(output token | everything before it) [len(output)], at a temperature greater than 0."""
        logits = self.logits([*prompt, *output], weights)[len(prompt) - 1 : -1]
        return _chosen(logits / temperature, output)

    def kept(self, prompt: Sequence[int], output: Sequence[int], segments: Sequence[Segment]) -> Tensor:
        """Return log-probs of an output made at temperature 1 under changing weights that kept cached keys and values.

        The last token of a segment is cached by the next one: a step caches the token it starts from.
        """
        cache = DynamicCache()
        ids, first = [*prompt, *output], len(prompt)
        parts, done = [], 0
        for segment in segments:
            upto = first + segment.stop - 1
            logits = self._forward(ids[done:upto], segment.weights, cache)
            parts.append(logits[len(logits) - (segment.stop - segment.start) :])
            done = upto
        return _chosen(torch.cat(parts), output)

    @torch.no_grad()
    def _forward(self, ids: Sequence[int], weights: Mapping[str, Tensor] | None, cache: Any) -> Tensor:
        arguments = {"past_key_values": cache, "use_cache": cache is not None}
        batch = torch.tensor([list(ids)])
        if weights is None:
            logits: Tensor = self._model(batch, **arguments).logits
        else:
            given = {name: tensor.to(self._dtype) for name, tensor in weights.items()}
            logits = torch.func.functional_call(self._model, given, (batch,), arguments).logits
        return logits[0].to(self._dtype)


def _chosen(logits: Tensor, output: Sequence[int]) -> Tensor:
    ids = torch.tensor(list(output)).unsqueeze(1)
    return torch.log_softmax(logits, -1).gather(1, ids)[:, 0]
