"""What `areal doctor` finds: values, so that text and JSON are two renderings of one thing.

Knows: the shape of a finding and which level is worst.
Does not know: any check, or how findings are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from attrs import Factory, frozen


class Severity(StrEnum):
    """How bad: `ok` is worth a line, `warning` works but not well, `error` does not work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@frozen(kw_only=True)
class Finding:
    """One thing doctor looked at.

    Example: Finding(code="host.shm", level="warning", subject="/dev/shm", what="64 MiB in all",
                     fix="docker run --shm-size=8g")
    `code` is a stable id: of an error page (`AREAL-E102`), or `area.check`.
    """

    code: str
    level: Severity
    subject: str
    what: str
    fix: str = ""


@frozen(kw_only=True)
class Report:
    """What doctor's own checks found, handed to the hooks that may add to it."""

    findings: tuple[Finding, ...] = ()
    devices: Mapping[str, int] = Factory(dict)
    """Device kind -> how many are seen."""

    @property
    def exit_code(self) -> int:
        """0 when all is fine, 1 with warnings, 2 with errors."""
        levels = {finding.level for finding in self.findings}
        if Severity.ERROR in levels:
            return 2
        return 1 if Severity.WARNING in levels else 0
