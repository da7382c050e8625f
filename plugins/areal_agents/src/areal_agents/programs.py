"""From a command as a run's yaml names it to one that means the same in any folder.

Knows: programs, interpreters and the scripts they are given.
Does not know: when a command runs, or with which environment.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_core.contract.errors import ConfigError

_INTERPRETER = re.compile(r"(python|node|ruby|perl|(ba|z|da)?sh)[\d.]*")


def absolute(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that means the same in another folder; `python` alone is the interpreter of this run.

    Raises:
        ConfigError: there is no such program, or no such script.
    """
    program, *arguments = command
    found = sys.executable if program == "python" else shutil.which(program)
    if found is None:
        raise _missing(f"there is no program {program!r}", "it is neither on the PATH nor an executable file")
    if _INTERPRETER.fullmatch(Path(program).name):
        script = arguments[0] if arguments else ""
        if script and not script.startswith("-") and not Path(script).is_file():
            raise _missing(f"there is no file {script!r}", f"it is what {program} is to run")
    return str(Path(found).absolute()), *(str(Path(word).absolute()) if _is_file(word) else word for word in arguments)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # longer than a path may be
        return False


def _missing(what: str, why: str) -> ConfigError:
    fix = "paths are relative to where the run is started: command: [python, agents/mine.py]"
    return ConfigError(f"rollout.workflow.options.command: {what}", why=why, fix=fix)
