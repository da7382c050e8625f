"""A shell completes commands, flags and keys."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from areal_core.cli.main import main

_ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
_areal areal "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `areal completion bash` prints, as a file."""
    areal = Path(sys.executable).with_name("areal")
    done = subprocess.run([areal, "completion", "bash"], capture_output=True, text=True, check=True)
    path = tmp_path_factory.mktemp("shell") / "areal.bash"
    path.write_text(done.stdout)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["conf"], "config"),
        (["train", "--dr"], "--dry-run"),
        (["config", "rollout.sampling.temp"], "rollout.sampling.temperature"),
        (["train", "run.yaml", "rollout.group_"], "rollout.group_size="),
        (["train", "run.yaml", "rollout.staleness_policy=d"], "rollout.staleness_policy=drop"),
        (["train", "run.yaml", "deterministic=t"], "deterministic=true"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bash_completes(words: list[str], completed: str, script: Path) -> None:
    """Commands and flags from the script, keys and their values from the run's own classes."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", _ASK, "bash", str(script), "areal", *words], capture_output=True, text=True, env={"PATH": path}
    )

    assert completed in done.stdout.split(), done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Which names the commands and asks for keys."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out

    assert "migrate-config" in text and "__complete" in text
