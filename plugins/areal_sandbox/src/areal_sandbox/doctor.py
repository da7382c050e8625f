"""What `areal doctor` says about sandboxes."""

from __future__ import annotations

from areal_agentic.sandbox import SandboxError
from areal_core.plugins.findings import Finding, Severity
from areal_core.plugins.hooks import hookimpl


@hookimpl
def areal_doctor_findings() -> list[Finding]:
    """Tell whether the provider `local` works here, and who counts what a sandbox takes. No fault where it does not."""
    from areal_sandbox.local.provider import LocalProvider

    provider = LocalProvider()
    try:
        provider.check()
    except SandboxError as error:
        what = f"the provider local does not work here (optional): {error.why}; {error.fix}"
    else:
        groups = provider.groups
        counted = (
            "every process is looked at 10 times a second" if groups is None else f"control groups v{groups.version}"
        )
        what = f"the provider local works; memory and processes: {counted}"
    return [Finding(code="sandbox.local", level=Severity.OK, subject="sandboxes", what=what)]
