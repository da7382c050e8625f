"""A folder that makes every Python process an NPU machine, and the environment that points to it.

Knows: how a process finds the libraries when it starts, and the stand-ins when it imports torch.
Does not know: what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from areal_ascend.environment import VISIBLE
from areal_ascend.testing import libraries

_DISTRIBUTION = "areal_ascend_host_npu-0"
_ENTRY_POINTS = """[torch.backends]
areal_ascend_host_npu = areal_ascend.testing.process:install

[areal.stand_ins]
npu = areal_ascend.testing:STAND_INS
"""
"""What torch calls when it has been imported, beside torch_npu itself; and what reports are told."""


def build(folder: Path) -> tuple[str, ...]:
    """Make the folder; return the functions of CANN that only refuse. Costs a second."""
    metadata = folder / "site" / f"{_DISTRIBUTION}.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: areal-ascend-host-npu\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    toolkit = folder / "toolkit"
    for part in ("opp", "runtime", "compiler"):
        (toolkit / part).mkdir(parents=True, exist_ok=True)
    return libraries.build(folder / "lib")


def environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` changed so that processes started with it, and those they start, use the folder."""
    found = dict(environ)
    for name, path in (("LD_LIBRARY_PATH", folder / "lib"), ("PYTHONPATH", folder / "site")):
        found[name] = ":".join(filter(None, (str(path), environ.get(name, ""))))
    found.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    found["ASCEND_HOME_PATH"] = str(folder / "toolkit")
    found["ASCEND_OPP_PATH"] = str(folder / "toolkit" / "opp")
    # There are no device files to count: schedulers give out the NPUs that are named.
    found.setdefault(VISIBLE, ",".join(str(number) for number in range(int(environ.get("AREAL_HOST_NPUS", "8")))))
    return found
