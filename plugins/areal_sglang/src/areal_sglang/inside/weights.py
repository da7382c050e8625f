"""Answer for the weights: what lies in a staged folder, and what the last load did.

Asked through SGLang's own route /weights_checker, whose request reaches every rank; actions of ours begin with
`areal.`. Hashing runs in a thread, so that tokens are computed meanwhile; the asker comes again until it is done.

Knows: safetensors files, fingerprints, ranks.
Does not know: who compares, or when weights are loaded (`loading`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sglang.srt.managers.io_struct import CheckWeightsReqInput, CheckWeightsReqOutput

from areal_serving.weights import fingerprint
from areal_sglang.inside import experts, loading, parts, receiving
from areal_sglang.inside.hooks import missing

PREFIX = "areal."
Answer = Mapping[str, Any]  # Any: JSON
T = TypeVar("T")


class Proof:
    """Hashes every tensor of a folder in a thread of its own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.fingerprints: dict[str, str] = {}
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="areal-proof", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Tell whether it came to its end."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for file in sorted(Path(self.folder).glob("*.safetensors")):
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 - not a mapping
                        self.fingerprints[name] = fingerprint(tensors.get_tensor(name))
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"


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
    if _proof is None or _proof.folder != folder:
        _proof = Proof(folder)
    proof = _proof
    if not proof.done:
        return {"done": False}
    _proof = None
    return {"done": True, "problem": proof.problem, "fingerprints": proof.fingerprints}


def _gathered(answer: T, group: Any) -> list[T]:
    """Return the answers of all ranks, on every rank."""
    count = torch.distributed.get_world_size(group=group)
    if count == 1:
        return [answer]
    answers: list[Any] = [None] * count
    torch.distributed.all_gather_object(answers, answer, group=group)
    return answers
