"""Watch weights that ranks take from a sender's broadcasts: what came, and what the model's loader passed over.

Knows: one transfer at a time.
Does not know: who sends; names of one model or another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from areal_serving.weights import fingerprint
from areal_sglang.inside.loading import Watch

Original = Callable[..., Any]  # Any: SGLang's own

_received: dict[str, str] = {}
_passed_over: list[str] = []


def begun(original: Original, updater: Any) -> Any:
    """Hook of WeightUpdater.begin_weight_update."""
    _received.clear()
    _passed_over.clear()
    return original(updater)


def came(original: Original, updater: Any, **kwargs: Any) -> Any:
    """Hook of WeightUpdater.receive_weights_from_distributed: hash what this rank holds."""
    weights = original(updater, **kwargs)
    _received.update((name, fingerprint(tensor)) for name, tensor in weights)
    return weights


def loaded(original: Original, updater: Any, named_tensors: Iterable[tuple[str, Tensor]]) -> Any:
    """Hook of WeightUpdater.load_weights_from_distributed."""
    watch = Watch(updater.get_model())
    with watch:
        result = original(updater, watch.offered(named_tensors))
    _passed_over.extend(watch.skipped)
    return result


def told() -> dict[str, Any]:
    """Return fingerprints by name, and the names nothing was written for."""
    return {"fingerprints": dict(_received), "passed_over": list(_passed_over)}
