"""What a batch must hold before the proximal policy can be the centre of the clip.

Knows: the three sources, and how stale each token is.
Does not know: who runs the forward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_core.algorithms.config import AlgorithmConfig, Proximal
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError


def add_proximal(batch: Batch, config: AlgorithmConfig, version: int, forward_logprobs: Tensor | None = None) -> Batch:
    """Add token column `proximal_logprobs` (behaviour, recompute) or `proximal_alpha` (loglinear), float32.

    Called by the controller once per step, on the whole batch, before it is cut into minibatches.
    For loglinear the log-probs follow inside the objective: behaviour + alpha * (policy - behaviour),
    alpha = 1 - 1 / d for a token d = version - versions[t] steps old, 0 for a fresh one (A-3PO,
    arXiv 2512.06547): the proximal policy stands one step before the current one.

    Args:
        version: the policy version of the trainer's weights before this step.
        forward_logprobs: float32 [T], the trainer's log-probs under those weights; recompute only.

    Raises:
        BatchError: recompute without `forward_logprobs`, or of another length.
    """
    mask = batch.tokens["loss_mask"]
    if config.proximal is Proximal.BEHAVIOUR:
        return batch.with_tokens(proximal_logprobs=batch.tokens["logprobs"].clone())
    if config.proximal is Proximal.RECOMPUTE:
        if forward_logprobs is None or forward_logprobs.shape != mask.shape:
            got = "none" if forward_logprobs is None else str(tuple(forward_logprobs.shape))
            raise BatchError(
                f"forward_logprobs: got {got}, wanted one per token, [{batch.num_tokens}]",
                why="algorithm.proximal is recompute: the proximal policy's log-probs come from a forward pass",
                fix="call TrainEngine.forward(batch, {Output.LOGPROBS}) first, or set algorithm.proximal to behaviour",
            )
        kept = torch.where(mask, forward_logprobs.detach().to(torch.float32), 0.0)
        return batch.with_tokens(proximal_logprobs=kept)
    return batch.with_tokens(proximal_alpha=_alpha(batch, version))


def _alpha(batch: Batch, version: int) -> Tensor:
    versions = batch.tokens["versions"]
    steps = (version - versions).to(torch.float32)
    known = batch.tokens["loss_mask"] & (versions >= 0) & (steps > 0)
    return torch.where(known, (1.0 - 1.0 / steps.clamp_min(1.0)).clamp(0.0, 1.0), 0.0)
