"""Two systems want one command: the doctor tells when both are here."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.plugins.findings import Severity
from areal_local.doctor.packages import check_original


@pytest.mark.parametrize(
    ("script", "whose"),
    [
        ("#!python\nfrom areal_core.cli.main import main\n", "this one's"),
        ("#!python\nfrom areal.cli import main\n", "the other one's"),
        (None, "missing"),
    ],
)
def test_the_original_system_beside_this_one_is_told_of(tmp_path: Path, script: str | None, whose: str) -> None:
    """Whoever types `areal` learns which of the two starts."""
    if script is not None:
        (tmp_path / "areal").write_text(script)

    (finding,) = check_original("1.0.2", tmp_path / "areal")

    assert finding.level is Severity.WARNING
    assert finding.what == f"1.0.2, another system, is installed as well; the command `areal` is {whose}"
    assert "python -m areal_core.cli.main" in finding.fix


def test_this_system_alone_is_no_finding(tmp_path: Path) -> None:
    """Nothing is said of what is not installed."""
    assert check_original(None, tmp_path / "areal") == []
