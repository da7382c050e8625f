"""What a step computed for the tokens it trained, as bytes, and back: advantages, and ratios where they are known.

Knows: which columns of a batch are kept, under which names.
Does not know: where the bytes lie (`store`), or how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.errors import StorageError
from areal_episodes.columns import checksum

_BOUND = 20.0
"""Log-ratios are held inside of it, as in the objectives."""


@frozen(kw_only=True, eq=False)
class StepColumns:
    """Columns of a packed batch. `lengths` int64 [N]; `tokens` float32 [sum of lengths], 0 where nothing is trained.

    `advantage` is what the loss multiplies, where it does. `ratio` is the trainer's probability before the step over
    the engine's, known to a run whose trainer computes log-probs before its step (`algorithm.proximal: recompute`, or
    `episodes.ratios`).
    """

    lengths: Tensor
    tokens: Mapping[str, Tensor]

    @classmethod
    def of(cls, batch: Batch) -> StepColumns:
        """Take them out of a batch."""
        mask, tokens = batch.tokens["loss_mask"], dict[str, Tensor]()
        if "advantages" in batch.tokens:
            tokens["advantage"] = torch.where(mask, batch.tokens["advantages"], 0.0)
        before = batch.tokens.get("policy_logprobs", batch.tokens.get("proximal_logprobs"))
        if before is not None:
            gap = before - batch.tokens["logprobs"]
            if "policy_logprobs" in batch.tokens or gap.any():
                tokens["ratio"] = torch.where(mask, gap.clamp(-_BOUND, _BOUND).exp(), 0.0)
        return cls(lengths=batch.lengths, tokens=tokens)

    def to_bytes(self, owners: Sequence[int]) -> bytes:
        """Return them with the number of the episode that each trajectory is of."""
        tokens = {f"token/{name}": column.to(torch.float32).contiguous() for name, column in self.tokens.items()}
        blob: bytes = save({"owners": torch.tensor(owners), "lengths": self.lengths.contiguous(), **tokens})
        return blob


def columns_of(owner: int, blob: bytes, expected: str, where: str) -> list[dict[str, Tensor]]:
    """Return the columns of each trajectory of one episode, in order.

    Raises:
        StorageError: the bytes are not those that were written; `where` names them.
    """
    if checksum(blob) != expected:
        raise StorageError(f"{where} is damaged", why=f"its checksum is {checksum(blob)}, not {expected}")
    try:
        found = load(blob)
        lengths = found["lengths"].tolist()
        tokens = {name[6:]: found[name].split(lengths) for name in sorted(found) if name.startswith("token/")}
        places = (found["owners"] == owner).nonzero().squeeze(1).tolist()
        return [{name: parts[place] for name, parts in tokens.items()} for place in places]
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise StorageError(f"{where} holds no columns", why=str(error)) from error
