"""What this plugin can do, for `areal backends` and the plan.

The engine is that of `areal_fsdp`, so are the claims; each says where it was tried. More of that is in the README.
"""

from __future__ import annotations

from attrs import evolve

from areal_core.plugins.claims import Claim
from areal_core.plugins.manifest import Manifest
from areal_fsdp.manifest import MANIFEST as FSDP

TRIED = "tested over stand-ins for CANN and HCCL, not on an NPU"


def _tried(claim: Claim) -> Claim:
    return evolve(claim, why="; ".join(filter(None, (claim.why, TRIED)))) if claim.claimed else claim


MANIFEST = Manifest(
    role="train",
    name="ascend",
    contract=FSDP.contract,
    factory="areal_ascend.engine:AscendEngine",
    config="areal_ascend.config:AscendConfig",
    conformance="areal_ascend.conformance:ADAPTER",
    requires=(*FSDP.requires, "torch-npu>=2.11"),
    extra="engine",
    devices=("npu",),
    summary="FSDP2 on Ascend NPUs; tested with stand-ins for CANN and HCCL, never run on an NPU",
    claims={key: _tried(claim) for key, claim in FSDP.claims.items()},
)
