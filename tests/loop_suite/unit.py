"""The core's other tests of the loop as checks: what no plugin can break is held by them, not by rules.

A check is a file of `tests/rollout`, `tests/fleet`, `tests/loop` or `tests/algorithms`, or one with whole runs in one
process, all that `make test` makes of it.

Knows: which files, and how one is made in this process.
Does not know: what they test.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from areal_conformance.check import Check, Level, Tier
from areal_conformance.outcome import Violation

FOLDERS = ("rollout", "fleet", "loop", "algorithms")
WHOLE_RUNS = ("end_to_end/test_adapters.py", "end_to_end/test_long_prompts.py")
HERE = Path(__file__).parents[1]
QUICK = "not slow and not hostile and not cluster and not gpu and not vllm and not sglang"
PLUGINS = ("-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider")
DEADLINE_S = 600.0


def file_checks() -> Mapping[str, Check]:
    """Return a check for each file, by id."""
    files = [file for folder in FOLDERS for file in sorted((HERE / folder).glob("test_*.py"))]
    files += [HERE / name for name in WHOLE_RUNS]
    found = [_check(f"loop.{file.parent.name}.{file.stem.removeprefix('test_')}", file) for file in files]
    return {check.id: check for check in found}


def _check(id: str, file: Path) -> Check:
    return Check(
        id=id,
        body=lambda _bench: _made(file),
        level=Level.SINGLE,
        law=8,
        spec="workflow",
        title=f"The tests of {file.name} pass.",
        tier=Tier.CORE,
        deadline_s=DEADLINE_S,
    )


def _made(file: Path) -> None:
    """Make the tests of a file, until one fails; not in the main thread, and with few of pytest's plugins."""
    options = ("-x", "-q", "--no-header", "--tb=line", "-m", QUICK, "--timeout=0", "--assert=plain")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        code = pytest.main([*options, *PLUGINS, str(file)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        failed = re.findall(r"^(?:FAILED|ERROR) (.*)$", said.getvalue(), re.MULTILINE)
        raise Violation(f"{file.name}: {'; '.join(failed) or said.getvalue()[-400:]}")
