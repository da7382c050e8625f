"""The answers to a name that leads nowhere, or to two places.

Knows: what is installed, what is official, which spelling is near.
Does not know: how names are registered.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from areal_core.contract.errors import BackendNotFound, DuplicateName, EngineMissing, PluginError
from areal_core.contract.version import ROLES
from areal_core.plugins.catalogue import COMMANDS, PLANNED, official_names, pip_command
from areal_core.plugins.describe import noun
from areal_core.plugins.discovery import HOOKS_GROUP, NARROW, Entry, discover
from areal_core.plugins.install import pip_install


def unknown_role(role: str) -> PluginError:
    """Return the error for a role that does not exist."""
    near = difflib.get_close_matches(role, ROLES, n=1)
    return PluginError(
        f"unknown role {role!r}", why=f"roles are {', '.join(ROLES)}", fix=f"did you mean '{near[0]}'?" if near else ""
    )


def not_found(role: str, name: str, origins: Mapping[str, str], hidden: Iterable[Entry]) -> BackendNotFound:
    """Return the error for an unknown name; `origins` maps the installed names to where they come from."""
    installed = ", ".join(f"{known} ({origin})" for known, origin in origins.items())
    why = f"installed: {installed}" if installed else f"no {noun(role)} is installed"
    fix = _hint(role, name, origins)
    if name in PLANNED.get(role, ()):
        why = f"it does not exist yet; {why}"
    for entry in hidden:
        if (entry.group, entry.name) == (f"areal.{role}", name):
            why = f"{entry.origin} has it, but {NARROW} leaves that out"
            fix = f"add {name} to {NARROW}, or unset it"
    return BackendNotFound(f"no {noun(role)} named {name!r} is installed", why=why, fix=fix)


def command_not_installed(word: str) -> EngineMissing | None:
    """Return the error for a command of ours whose package is not installed, or left out; None for another word."""
    distribution = COMMANDS.get(word)
    if distribution is None:
        return None
    why, fix = f"{distribution} adds it, and is not installed", pip_install(distribution)
    if any((entry.group, entry.distribution) == (HOOKS_GROUP, distribution) for entry in discover().hidden):
        why, fix = (
            f"{distribution} adds it, but {NARROW} leaves that out",
            f"add {distribution} to {NARROW}, or unset it",
        )
    return EngineMissing(f"areal has no command {word!r} here", why=why, fix=fix)


def duplicate(role: str, name: str, first: str, second: str) -> DuplicateName:
    """Return the error for a name that two distributions or files claim."""
    return DuplicateName(
        f"{noun(role)} {name!r} is registered twice", why=f"by {first} and by {second}", fix=_remedy(first, second)
    )


def _hint(role: str, name: str, installed: Iterable[str]) -> str:
    command = pip_command(role, name)
    if command:
        return command
    known = list(installed)
    near = difflib.get_close_matches(name, [*known, *official_names(role)], n=1)
    if not near or role == "device":  # gpu is near to xpu, and is none
        return f"areal backends --role {role}"
    return f"did you mean '{near[0]}'?" + ("" if near[0] in known else f"  {pip_command(role, near[0])}")


def _remedy(first: str, second: str) -> str:
    files = [origin for origin in (first, second) if origin.endswith(".py")]
    if files:
        return f"give the one in {files[-1]} another name"
    return f"pip uninstall {second.partition(' ')[0]}, or {first.partition(' ')[0]}"
