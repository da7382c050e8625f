"""The commands the suite adds to `areal`.

Knows: their names. Imports nothing heavy: `areal --help` imports this module.
"""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal conformance` and `areal new`."""
    return [
        Command(
            name="conformance",
            target="areal_conformance.cli.app:app",
            help="Check that a backend meets the contract: run, list, explain, compare, self-test.",
        ),
        Command(
            name="new",
            target="areal_conformance.new.command:app",
            help="Generate a plugin package, or a workflow in one file.",
        ),
    ]
