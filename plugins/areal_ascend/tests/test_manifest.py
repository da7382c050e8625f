"""What the plugin says of itself, without NPU or torch_npu."""

from __future__ import annotations

import subprocess
import sys

import pytest

from areal_ascend.config import AscendConfig
from areal_ascend.manifest import MANIFEST
from areal_core.contract.errors import PlanError
from areal_core.plugins.discovery import discover
from areal_core.plugins.hooks import Hooks
from areal_fsdp.manifest import MANIFEST as FSDP


def test_it_claims_what_its_engine_claims_and_one_device() -> None:
    """Nothing is promised that the FSDP engine does not do, and no device but an NPU; all of it says where it held."""
    for key, claim in FSDP.claims.items():
        mine = MANIFEST.claims[key]
        assert (claim.support, claim.condition, claim.issue) == (mine.support, mine.condition, mine.issue)
        assert claim.claimed == mine.why.endswith("over stand-ins for CANN and HCCL, not on an NPU")
        assert claim.claimed or claim.why == mine.why
    assert FSDP.claims.keys() == MANIFEST.claims.keys()
    assert MANIFEST.devices == ("npu",)
    assert "never run on an NPU" in MANIFEST.summary


def test_compilation_is_refused_at_planning() -> None:
    """Where options are read; all others are those of fsdp."""
    assert AscendConfig(wrap="layer", cpu_offload=True).wrap == "layer"
    with pytest.raises(PlanError, match="not compiled on an NPU"):
        AscendConfig(compile=True)


def test_describing_it_and_asking_doctor_import_no_torch() -> None:
    """Torch may be what cannot be imported."""
    program = "import areal_ascend.manifest, areal_ascend.doctor, sys; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_its_hook_answers() -> None:
    """The entry point leads to a plugin that pluggy takes."""
    hooks = Hooks([entry for entry in discover({}).hooks if entry.name == "ascend"])

    assert isinstance(hooks.collect("areal_doctor_findings", report=None), list)
    assert hooks.failures == []
