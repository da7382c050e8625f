"""Refuse tensors that come pickled: unpickling runs whatever its sender wrote, and torch's default way of sharing
memory between processes that are not parent and child ends the server.

Knows: the two routes that take them.
Does not know: any other way weights come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.io_struct import LoRAUpdateOutput, UpdateWeightsFromTensorReqOutput

WHY = "areal takes no pickled tensors; send them from a folder, or through a weight-update group"

Original = Callable[..., Any]  # Any: SGLang's own


def weights(original: Original, manager: Any, request: Any) -> UpdateWeightsFromTensorReqOutput:
    """Hook of SchedulerWeightUpdaterManager.update_weights_from_tensor."""
    return UpdateWeightsFromTensorReqOutput(success=False, message=WHY)


def adapter(original: Original, worker: Any, request: Any) -> LoRAUpdateOutput:
    """Hook of BaseTpWorker.load_lora_adapter_from_tensors."""
    return LoRAUpdateOutput(success=False, error_message=WHY)
