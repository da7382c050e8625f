"""`areal doctor`: examine the machine and the plugins, and say what to do.

Knows: which checks make an examination, and two renderings of what they found.
Does not know: any check (`areal_local.doctor`).
"""

from __future__ import annotations

import json as jsonlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from areal_core.plugins.devices import accelerators
from areal_core.plugins.findings import Finding, Report, Severity
from areal_core.plugins.hooks import Hooks
from areal_core.plugins.registry import Registry, default_registry
from areal_local.doctor.deep import check_deep
from areal_local.doctor.host import check_host
from areal_local.doctor.installed import check_discovery, check_hooks, check_rows
from areal_local.doctor.packages import check_packages
from areal_local.inventory import inventory, nothing_named

_MARKS = {Severity.OK: "[green]ok     [/]", Severity.WARNING: "[yellow]warning[/]", Severity.ERROR: "[red]error  [/]"}


def doctor(
    *,
    backend: str | None = None,
    deep: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Examine this machine and the plugins on it. Exit code 0 when fine, 1 with warnings, 2 with errors.

    Args:
        backend: Only this plugin, and be strict: one that cannot run is an error.
        deep: Also load every engine and run a little torch, each in a process of its own; takes a minute.
        json: Print JSON instead of text.
    """
    report = examine(default_registry(), Path.cwd(), backend=backend, deep=deep)
    console = Console()
    if json:
        console.file.write(render_json(report) + "\n")
    else:
        render_text(report, console)
    return report.exit_code


def examine(registry: Registry, folder: Path, *, backend: str | None, deep: bool) -> Report:
    """Run the checks here first, then those of hook plugins.

    Raises:
        BackendNotFound: nothing is called `backend`.
    """
    rows = inventory(registry, name=backend)
    if backend is not None and not rows:
        raise nothing_named(registry, backend)
    kinds = accelerators(registry)
    findings = [*check_host(folder, kinds), *check_packages(), *check_discovery(registry.discovery)]
    findings += check_rows(rows, wanted=backend is not None)
    if deep:
        has_torch = any(f.code == "core.torch" and f.level is Severity.OK for f in findings)
        findings += check_deep(rows, torch=has_torch)
    devices = {kind.name: len(seen) for kind in kinds if (seen := kind.see(os.environ))}
    hooks = Hooks(registry.discovery.hooks)
    added = hooks.collect("areal_doctor_findings", report=Report(findings=tuple(findings), devices=devices))
    findings += [finding for finding in added if isinstance(finding, Finding)]
    findings += check_hooks(hooks.failures)
    return Report(findings=tuple(findings), devices=devices)


def render_text(report: Report, console: Console) -> None:
    """Print one line per finding, its fix below, and a last line that counts."""
    for finding in report.findings:
        line = f"{_MARKS[finding.level]} {escape(finding.subject)}: {escape(finding.what)}"
        code = f" [dim][{finding.code}][/]".replace("[AREAL", "\\[AREAL") if finding.code.startswith("AREAL") else ""
        console.print(line + code, soft_wrap=True, highlight=False)
        if finding.fix and finding.level is not Severity.OK:
            console.print(f"        fix: {finding.fix}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"\n{_verdict(report.findings)}", highlight=False)


def render_json(report: Report) -> str:
    """Return the report as JSON: the exit code, the devices, and every finding."""
    findings = [
        {"code": f.code, "level": str(f.level), "subject": f.subject, "what": f.what, "fix": f.fix}
        for f in report.findings
    ]
    return jsonlib.dumps(
        {"exit_code": report.exit_code, "devices": dict(report.devices), "findings": findings}, indent=2
    )


def _verdict(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    parts = [f"{counts[level]} {level}" for level in Severity if counts[level]]
    return f"{len(findings)} checks: {', '.join(parts)}"
