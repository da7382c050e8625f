"""Log-probs of given tokens.

Knows: one whole forward.
Does not know: requests, or which weights serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from areal_core.contract.errors import BatchError, PromptTooLong
from areal_proof.second.infer.forward import Delta, forward
from areal_proof.second.infer.loading import Loaded
from areal_proof.second.infer.ranks import OtherHosts


def scores(
    loaded: Loaded,
    weights: Mapping[str, Tensor],
    ids: list[int],
    temperature: float,
    deltas: Mapping[str, Delta] | None = None,
    others: OtherHosts | None = None,
) -> Sequence[float]:
    """Return log p(token t | tokens < t) at a temperature, 0.0 for the first token.

    Raises:
        BatchError: ids outside the vocabulary, none, or a temperature that is not positive.
        PromptTooLong: more tokens than the context holds.
    """
    shape = loaded.shape
    if not ids or not all(0 <= token < shape.vocab for token in ids) or not 0 < temperature < float("inf"):
        raise BatchError(
            f"{len(ids)} tokens at temperature {temperature} cannot be scored",
            why=f"ids must be 0 to {shape.vocab - 1}, at least one, and the temperature positive",
        )
    if len(ids) > loaded.context:
        raise PromptTooLong(f"{len(ids)} tokens do not fit into a context of {loaded.context}")
    computed = forward(shape, weights, ids, deltas, cut=loaded.cut, others=others)
    logprobs = (computed.logits.double() / temperature).log_softmax(-1)
    return [0.0, *(float(logprobs[place, token]) for place, token in enumerate(ids[1:]))]
