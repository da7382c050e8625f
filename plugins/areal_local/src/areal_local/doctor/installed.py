"""Checks of the plugins: can each be described, is its engine here, did every hook load?

Knows: how a row of the inventory becomes a finding.
Does not know: the machine, or how plugins are found.
"""

from __future__ import annotations

from collections.abc import Sequence

from areal_core.plugins.describe import noun
from areal_core.plugins.discovery import NARROW, Discovery
from areal_core.plugins.findings import Finding, Severity
from areal_core.plugins.hooks import HookFailure
from areal_local.inventory import Row


def check_rows(rows: Sequence[Row], *, wanted: bool) -> list[Finding]:
    """Return one finding per plugin.

    Without its engine or its device a plugin is a choice where another one of its role can run here, and worth a
    warning where none can.

    Args:
        wanted: these very plugins were asked about, so one that cannot run is an error.
    """
    served = {row.role for row in rows if row.probe is not None and row.probe.ok}
    return [_check_row(row, wanted, row.optional or row.role in served) for row in rows]


def check_discovery(discovery: Discovery) -> list[Finding]:
    """Return what discovery itself noticed: unreadable metadata, and words of AREAL_PLUGINS that fit nothing."""
    findings = [
        Finding(code="plugins.metadata", level=Severity.WARNING, subject=where, what=why, fix="reinstall that package")
        for where, why in discovery.unreadable
    ]
    findings += [
        Finding(
            code="plugins.narrowed",
            level=Severity.WARNING,
            subject=NARROW,
            what=f"{word!r} fits no installed plugin",
            fix=f"correct it, or unset {NARROW}",
        )
        for word in discovery.unmatched
    ]
    if discovery.hidden:
        names = ", ".join(sorted({entry.name for entry in discovery.hidden}))
        findings.append(Finding(code="plugins.narrowed", level=Severity.OK, subject=NARROW, what=f"leaves out {names}"))
    return findings


def check_hooks(failures: Sequence[HookFailure]) -> list[Finding]:
    """Return one error per hook plugin that could not be loaded or raised."""
    return [
        Finding(
            code="AREAL-E103",
            level=Severity.ERROR,
            subject=f"hooks {failure.name!r} of {failure.origin}",
            what=failure.why,
            fix=f"pip uninstall {failure.origin.partition(' ')[0]}, or report it to its authors",
        )
        for failure in failures
    ]


def _check_row(row: Row, wanted: bool, optional: bool) -> Finding:
    subject = f"{noun(row.role)} {row.name} ({row.origin})"
    if row.error is not None:
        what = f"{row.error.what}: {row.error.why}" if row.error.why else row.error.what
        return Finding(
            code=f"AREAL-{row.error.code}", level=Severity.ERROR, subject=subject, what=what, fix=row.error.fix
        )
    assert row.probe is not None
    if row.probe.ok:
        parts = [f"{name} {version}" for name, version in row.probe.versions.items()]
        parts += [f"on {device} {python}" for device, python in row.probe.environments.items()]
        if row.probe.warnings:
            what, _, fix = "; ".join(row.probe.warnings).rpartition("; ")
            return Finding(code="plugins.environment", level=Severity.WARNING, subject=subject, what=what, fix=fix)
        found = ", ".join(parts)
        return Finding(
            code="plugins.probe", level=Severity.OK, subject=subject, what=f"ok{': ' if found else ''}{found}"
        )
    level = Severity.ERROR if wanted else Severity.OK if optional else Severity.WARNING
    absent = row.probe.missing or (row.probe.devices and row.probe.no_environment)
    code = "AREAL-E102" if absent else "plugins.device"
    what = row.probe.summary + (" (optional)" if level is Severity.OK else "")
    return Finding(code=code, level=level, subject=subject, what=what, fix=row.probe.fix)
