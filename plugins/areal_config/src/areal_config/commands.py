"""The commands this plugin adds to `areal`. Imports nothing heavy: `areal --help` imports this module."""

from __future__ import annotations

from areal_core.plugins.hooks import Command, hookimpl


@hookimpl
def areal_cli_commands() -> list[Command]:
    """Add `areal config`, `areal completion` and `areal migrate-config`."""
    return [
        Command(
            name="config",
            target="areal_config.command:config_command",
            help="Show the keys of a run's yaml: type, default, meaning; or their JSON schema.",
        ),
        Command(
            name="completion",
            target="areal_config.completion:completion_command",
            help="Print what lets bash, zsh or fish complete commands and keys.",
        ),
        Command(
            name="migrate-config",
            target="areal_config.migrate.command:migrate_command",
            help="Convert a yaml of AReaL into a run's.",
        ),
    ]
