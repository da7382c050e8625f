"""`areal completion SHELL`: the script that lets a shell complete commands, flags and keys.

Knows: which shells, and that a key of a run is completed section by section.
Does not know: how a shell is told (cyclopts writes the script and answers it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rich.console import Console

from areal_config.find import run_keys
from areal_core.cli.main import make_app, plugin_commands


def completion_command(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the completion script of a shell; evaluate it, or put it where the shell looks.

    Parameters
    ----------
    shell:
        bash: source <(areal completion bash); zsh: the same; fish: areal completion fish | source
    """
    script = make_app(plugin_commands()).generate_completion(prog_name="areal", shell=shell)
    Console().file.write(script)
    return 0


def complete_keys(context: object) -> list[str]:
    """Return the keys of a run, for `areal config KEY`."""
    return [key.path for key in run_keys()]


def complete_overrides(context: object) -> list[str]:
    """Extension `complete_overrides`: return what may stand on a command line as `a.b=c`, choices with their values."""
    return list(_overrides())


def _overrides() -> Iterator[str]:
    for key in run_keys():
        if key.section or "[]" in key.path:
            continue
        values = [value for value, _ in key.choices] or (["true", "false"] if key.type == "true or false" else [])
        yield from (f"{key.path}={value}" for value in values or [""])
