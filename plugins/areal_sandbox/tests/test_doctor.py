"""What `areal doctor` says about sandboxes."""

from __future__ import annotations

import pytest

from areal_core.plugins.findings import Severity
from areal_sandbox.doctor import areal_doctor_findings


def test_sandboxes_that_work(checked: None) -> None:
    """It says who counts what a sandbox takes."""
    (finding,) = areal_doctor_findings()

    assert finding.level == Severity.OK
    assert "the provider local works; memory and processes: " in finding.what


def test_sandboxes_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fault of the machine: it says what is missing, and the command that brings it."""
    monkeypatch.setenv("PATH", "/no/such")
    (finding,) = areal_doctor_findings()

    assert finding.level == Severity.OK
    assert "bwrap" in finding.what and "apt-get install bubblewrap" in finding.what
