"""Answer for the weights: what lies in a staged folder, and what the last load did.

Asked through SGLang's own route /weights_checker, whose request reaches every rank; actions of ours begin with
`areal.`. Hashing runs in a thread, so that tokens are computed meanwhile; the asker comes again until it is done.

Knows: ranks, and what each of them is asked.
Does not know: who compares, or when weights are loaded (`loading`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from sglang.srt.managers.io_struct import CheckWeightsReqInput, CheckWeightsReqOutput

from areal_serving.proof import Proof
from areal_sglang.inside import experts, loading, parts, receiving
from areal_sglang.inside.targets import missing

PREFIX = "areal."
Answer = Mapping[str, Any]  # Any: JSON
T = TypeVar("T")


_proof: Proof | None = None


def asked(original: Callable[..., Any], manager: Any, request: CheckWeightsReqInput) -> Any:  # Any: SGLang's own
    """Hook of SchedulerWeightUpdaterManager.check_weights."""
    if not request.action.startswith(PREFIX):
        return original(manager, request)
    action, _, folder = request.action.removeprefix(PREFIX).partition(":")
    if action == "write":
        whole = parts.joined(_gathered(loading.read_back(), manager.tp_cpu_group), loading.shapes())
        if manager.tp_cpu_group.rank() == 0:
            save_file(dict(whole), folder)
        return CheckWeightsReqOutput(success=True, message="[]")
    ranks = _gathered(_answer(action, folder), manager.tp_cpu_group)
    return CheckWeightsReqOutput(success=True, message=json.dumps(ranks))


def _answer(action: str, folder: str) -> Answer:
    global _proof
    if action == "describe":
        return {
            "missing": missing(),
            "uncovered": sorted(loading.at_start),
            "experts": experts.described(loading.model_served()),
        }
    if action == "received":
        return receiving.told()
    if action == "loaded":
        return {"problems": loading.problems()}
    if action != "prove":
        return {"problem": f"no action {action!r}"}
    if _proof is None or _proof.folder != Path(folder):
        _proof = Proof(Path(folder))
    state = _proof.state()
    if state["done"]:
        _proof = None
    return state


def _gathered(answer: T, group: Any) -> list[T]:
    """Return the answers of all ranks, on every rank."""
    count = torch.distributed.get_world_size(group=group)
    if count == 1:
        return [answer]
    answers: list[Any] = [None] * count
    torch.distributed.all_gather_object(answers, answer, group=group)
    return answers
