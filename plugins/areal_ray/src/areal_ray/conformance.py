"""What the suite needs to know about this scheduler. Imported by the suite only.

It is checked on a cluster of three machines, which `areal_ray.testing.machines` makes of this one, or on the one that
RAY_ADDRESS names. Checks that have this process see devices are made with a Ray of its own, which counts those.
"""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
import sys
from typing import Any

from areal_conformance.adapter import Adapter, Case
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry

_ADDRESS = "RAY_ADDRESS"
_MACHINES = 3


if _ADDRESS not in os.environ:  # before anybody imports Ray, which reads them once
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _built(case: Case) -> Any:  # Any: a scheduler
    named = any(name in os.environ for device in accelerators(default_registry()) for name in device.visible_variables)
    if not named and _ADDRESS not in os.environ:
        _start_machines()
    return case.make({**case.options, "address": "local" if named else ""})


def _start_machines() -> None:
    """Start a cluster that is no descendant of this process, which counts those, and ends with it."""
    command = ["setsid", "--fork", sys.executable, "-m", "areal_ray.testing.machines", str(_MACHINES)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    atexit.register(process.stdin.close)
    os.environ[_ADDRESS] = process.stdout.readline().strip()
    process.wait()


ADAPTER = Adapter(
    build=_built,
    anchors=("ray._private.ray_constants:ENABLE_RAY_CLUSTER",),
    no_threshold={
        "areal_ray.news:_LARGE_BYTES": "larger frames travel beside others: scheduler.calls.values has both",
        "areal_ray.cluster:_MAX_ROOT": "letters of the folder that Ray's sockets lie in",
        "areal_ray.ray_worker:_STOOD_STILL": "how late a look may be before the machine is held to have stood still",
    },
    patience=4.0,
    slow_start=True,
)
"""Ray itself takes three seconds to start, and one for each worker's relay; half a minute on a busy machine."""
