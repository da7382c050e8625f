"""Describes the workflows of the core."""

from __future__ import annotations

from areal_core.plugins.claims import full
from areal_core.plugins.manifest import Manifest

SINGLE_TURN = Manifest(
    role="workflow",
    name="single_turn",
    contract=(1, 2),
    factory="areal_core.workflows.single_turn:SingleTurnWorkflow",
    config="areal_core.workflows.single_turn:SingleTurnConfig",
    requires=("torch>=2.11",),
    extra="torch",
    devices=("cpu", "cuda", "npu"),
    claims={"images": full()},
    summary="One prompt, one completion, one reward.",
)
