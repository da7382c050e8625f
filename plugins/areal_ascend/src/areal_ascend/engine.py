"""FSDP2 on Ascend NPUs as a TrainEngine.

Knows: what must hold before an NPU is touched, and which kernel computes attention there.
Does not know: how a model is sharded or trained; `areal_fsdp` does that, on the device it is given.
"""

from __future__ import annotations

import os

import torch
from attrs import evolve

from areal_ascend import environment
from areal_ascend.config import AscendConfig
from areal_core.contract.errors import ResourceError
from areal_core.contract.train import EngineInfo, RankContext, TrainSpec
from areal_fsdp.engine import FSDPEngine
from areal_torch.attention import use_kernel


class AscendEngine(FSDPEngine):
    """The FSDP engine, on NPUs only. Ranks meet over HCCL."""

    name = "ascend"

    def __init__(self, config: AscendConfig | None = None) -> None:
        """Keep the options; `start` builds."""
        super().__init__(config or AscendConfig())

    def start(self, spec: TrainSpec, rank: RankContext) -> EngineInfo:
        """Check the machine, choose the kernel, start as on any device."""
        installed = environment.Installed.here()
        if rank.device != "npu":
            raise ResourceError(
                f"the ascend engine was started on {rank.device}",
                why="it supports only NPUs",
                fix="use the backend fsdp, which is this one on other devices",
            )
        environment.require(os.environ, installed)
        from areal_ascend.attention import fused_attention  # loads torch_npu, which the checks above explain better

        use_kernel("npu", fused_attention)
        info = super().start(spec, rank)
        return evolve(
            info,
            engine_version=installed.torch_npu,
            details={**info.details, "torch": str(torch.__version__), "attention": "npu_fusion_attention"},
        )
