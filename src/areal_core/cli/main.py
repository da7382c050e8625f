"""The `areal` command: its commands by name, and what happens when one of them fails.

Knows: names, help lines and import paths of the commands; exit codes.
Does not know: what a command does. None is imported before it runs.

Exit codes: what the command returns; 1 for an error, 2 for bad input, 130 for Ctrl-C.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from areal_core import __version__

if TYPE_CHECKING:
    from cyclopts import App

COMMANDS: Mapping[str, tuple[str, str]] = {
    "train": ("areal_core.cli.train:train_command", "Train a model from a yaml file.")
}
"""Command -> where it is, and its line in `areal --help`."""

INTERRUPTED, BAD_INPUT = 130, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the console script of the distribution.

    Args:
        arguments: without the program's name; those of the process if None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from areal_core.contract.errors import ArealError, ConfigError  # here Ctrl-C leaves no traceback

        return _run(words)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except ArealError as exc:
        from areal_core.plugins.redact import redact  # nobody waits for it where all is well

        print(redact("\n".join([f"{type(exc).__name__}: {exc}", *getattr(exc, "__notes__", ())])), file=sys.stderr)
        return BAD_INPUT if isinstance(exc, ConfigError) else 1
    except BrokenPipeError:  # `areal backends | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def make_app(extra: Mapping[str, tuple[str, str]] | None = None) -> App:
    """Return the cyclopts application with the core's commands and the extra ones; imports no command."""
    from cyclopts import App

    app = App(
        name="areal",
        help="Asynchronous reinforcement learning of language models.",
        help_epilogue="Start with: areal quickstart",
        help_format="plaintext",  # the markdown renderer would double the time of `areal --help`
        version=__version__,
        result_action="return_value",
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, (target, summary) in {**(extra or {}), **COMMANDS}.items():
        app.command(target, name=name, help=summary)
    return app


def _run(words: list[str]) -> int:
    first = words[0] if words else "--help"
    # Hook plugins are asked only where they could matter, so that they cannot slow or break the core's commands.
    extra = {} if first in COMMANDS or first == "--version" else plugin_commands()
    if not first.startswith(("-", "__")) and first not in {*COMMANDS, *extra}:
        raise _unknown_command(first, [*COMMANDS, *extra])
    app = make_app(extra)
    from cyclopts import CycloptsError

    try:
        result = app(words or ["--help"])
    except CycloptsError:
        return BAD_INPUT  # cyclopts has printed what is wrong
    except ImportError as exc:
        from areal_core.contract.errors import ArealError, EngineMissing

        cause = exc if isinstance(exc, ArealError | ModuleNotFoundError) else exc.__cause__  # ours say it themselves
        if isinstance(cause, ModuleNotFoundError) and not (cause.name or "areal").startswith("areal"):
            from areal_core.plugins.install import pip_install

            what, fix = f"areal {first} needs the module {cause.name!r}", pip_install("areal-core[torch]")
            raise EngineMissing(what, why="it is not installed", fix=fix) from exc
        raise
    return result if isinstance(result, int) else 0


def plugin_commands() -> dict[str, tuple[str, str]]:
    """Return the commands hook plugins add: name -> where it is, and its line in `areal --help`."""
    from areal_core.plugins.discovery import discover

    entries = discover().hooks
    if not entries:
        return {}
    from areal_core.plugins.catalogue import COMMANDS as OURS
    from areal_core.plugins.hooks import Command, Hooks

    found = [c for c in Hooks(entries).collect("areal_cli_commands") if isinstance(c, Command)]
    # A name of ours is added by our own package alone.
    packages = {name: distribution.replace("-", "_") for name, distribution in OURS.items()}
    return {c.name: (c.target, c.help) for c in found if c.target.startswith(packages.get(c.name, ""))}


def _unknown_command(word: str, known: Sequence[str]) -> Exception:
    from areal_core.contract.errors import ConfigError
    from areal_core.plugins.lookup_errors import command_not_installed

    if (official := command_not_installed(word)) is not None:
        return official
    near = difflib.get_close_matches(word, known, n=1)
    return ConfigError(
        f"areal has no command {word!r}",
        why=f"commands are {', '.join(known)}",
        fix=f"did you mean 'areal {near[0]}'?" if near else "areal --help",
    )


if __name__ == "__main__":
    sys.exit(main())
