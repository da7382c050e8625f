"""The command the suite adds to `areal`.

Knows: its name. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal conformance`."""
    return [
        Command(
            name="conformance",
            target="areal_conformance.cli.app:app",
            help="Hold a backend to the contract: run, list, explain, compare, self-test.",
        )
    ]
