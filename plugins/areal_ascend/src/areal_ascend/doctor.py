"""What `areal doctor` says about NPUs. Imports no torch: it may be what cannot be imported."""

from __future__ import annotations

import os

from areal_ascend import environment
from areal_core.plugins.findings import Finding
from areal_core.plugins.hooks import hookimpl


@hookimpl
def areal_doctor_findings() -> list[Finding]:
    """Add the examination of this machine; nothing where there is neither an NPU nor torch_npu."""
    return environment.examine(os.environ, environment.Installed.here())
