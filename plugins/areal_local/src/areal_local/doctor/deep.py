"""Deep checks: load every factory, import every engine that has an interpreter of its own, run a little torch.

Each in a process of its own.

Knows: that importing an engine may crash the process or hang, so it is done elsewhere and with a time limit.
Does not know: what the engines do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from areal_core.plugins.describe import noun
from areal_core.plugins.extensions import EnginePython
from areal_core.plugins.findings import Finding, Severity
from areal_local.inventory import Row

LIMIT_S = 60.0
ENGINE_LIMIT_S = 240.0
"""For importing an inference engine, which reads some gigabytes the first time."""

_LOAD = "import sys; from areal_local.doctor.deep import load; load(sys.argv[1], sys.argv[2])"
_TORCH = """
import torch, torch.distributed as dist
assert float((torch.ones(64, 64) @ torch.ones(64, 64)).sum()) == 64.0 ** 3, "a matrix product is wrong"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
total = torch.ones(1); dist.all_reduce(total); dist.destroy_process_group()
from areal_core.contract.device import CPU
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry
devices = []
for kind in accelerators(default_registry()):
    module = getattr(torch, kind.torch_type, None)
    if kind.torch_type != CPU and module and module.is_available():
        free = f" ({kind.memory(module, 0).free / 2**30:.1f} GiB free on the first)" if kind.memory else ""
        devices.append(f"{module.device_count()} {kind.name}{free}")
print(", ".join([f"torch {torch.__version__}: product and gloo work", *devices]))
"""


def check_deep(rows: Sequence[Row], *, torch: bool, limit_s: float = LIMIT_S) -> list[Finding]:
    """Load what the probe found usable, one process each, and run torch if it is installed.

    Args:
        limit_s: how many seconds each process may take; importing an inference engine may take longer.
    """
    usable = [row for row in rows if row.probe is not None and row.probe.ok]
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        findings = list(pool.map(lambda row: _loaded(row, limit_s), usable))
        pythons = [(row, python) for row in usable if row.probe for python in row.probe.environments.values()]
        findings += pool.map(lambda pair: _imported(pair[0], pair[1], limit_s), pythons)
    return [_torch_works(limit_s), *findings] if torch else findings


def load(role: str, name: str) -> None:
    """Load one factory; runs in the child process and prints what went wrong as one line of JSON."""
    from areal_core.contract.errors import ArealError
    from areal_core.plugins.registry import default_registry

    try:
        default_registry().load(role, name)
    except ArealError as exc:
        error = {"code": f"AREAL-{exc.code}", "what": f"{exc.what}: {exc.why}", "fix": exc.fix}
        sys.stdout.write("\n" + json.dumps(error))


def run_child(arguments: Sequence[str], limit_s: float, python: str = sys.executable) -> tuple[str, str]:
    """Run an interpreter with arguments; return its output, and one phrase on how it failed or an empty one."""
    try:
        done = subprocess.run(
            [python, *arguments], capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "", f"no end after {limit_s:g} s"
    if done.returncode == 0:
        return done.stdout, ""
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return done.stdout, f"{how}: {last}"


def _loaded(row: Row, limit_s: float) -> Finding:
    subject = f"{noun(row.role)} {row.name} ({row.origin})"
    output, failure = run_child(["-c", _LOAD, row.role, row.name], limit_s)
    if failure:
        return Finding(
            code="AREAL-E103",
            level=Severity.ERROR,
            subject=subject,
            what=f"loading it failed: {failure}",
            fix=f'load it by hand: python -c "import {_module(row)}"',
        )
    last = (output.strip().splitlines() or [""])[-1]
    if last.startswith('{"code"'):
        error = json.loads(last)
        return Finding(code=error["code"], level=Severity.ERROR, subject=subject, what=error["what"], fix=error["fix"])
    return Finding(code="plugins.load", level=Severity.OK, subject=subject, what="loads")


def _imported(row: Row, python: EnginePython, limit_s: float) -> Finding:
    subject = f"{noun(row.role)} {row.name} on {python.device}"
    _, failure = run_child(["-c", f"import {python.engine}"], max(limit_s, ENGINE_LIMIT_S), str(python.path))
    if failure:
        return Finding(
            code="plugins.environment",
            level=Severity.ERROR,
            subject=subject,
            what=f"importing {python.engine} under {python.path} failed: {failure}",
            fix=f"{python.create_command} --force",
        )
    return Finding(code="plugins.environment", level=Severity.OK, subject=subject, what=f"{python} can be imported")


def _module(row: Row) -> str:
    return row.manifest.factory.partition(":")[0] if row.manifest is not None else row.name


def _torch_works(limit_s: float) -> Finding:
    output, failure = run_child(["-c", _TORCH], limit_s)
    if not failure:
        return Finding(code="core.torch.works", level=Severity.OK, subject="torch", what=output.strip())
    fix = "export GLOO_SOCKET_IFNAME=lo" if "gloo" in failure.lower() else "pip install --force-reinstall torch"
    return Finding(code="core.torch.works", level=Severity.ERROR, subject="torch", what=failure, fix=fix)
