"""A third party's endpoint in one file, from the page of the contract, is certified."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from areal_core.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs/contract/endpoint.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_endpoint_of_the_page_is_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command of the page, every check of the role among them."""
    (shown,) = re.findall(r'```python title="told.py"\n(.*?)```', PAGE, re.DOTALL)
    (command,) = re.findall(r"^areal (conformance run .*)$", PAGE, re.MULTILINE)
    (tmp_path / "told.py").write_text(shown, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    code = main(shlex.split(command))

    told = capsys.readouterr().out
    assert (code, "verdict: success" in told) == (0, True), told
