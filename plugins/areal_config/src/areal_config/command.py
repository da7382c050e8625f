"""`areal config`: every key of a run, one key in full, or the JSON schema.

Knows: arguments.
Does not know: what keys there are (`find`) or how they look (`show`).
"""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from areal_config import find, show
from areal_config.completion import complete_keys
from areal_config.keys import Key
from areal_config.schema import run_schema
from areal_core.contract.errors import ConfigError
from areal_core.plugins.registry import Registry, default_registry


def config_command(
    key: Annotated[str | None, Parameter(completer=complete_keys)] = None,
    *,
    backend: Annotated[str | None, Parameter(help="Whose options, for a key such as actor.options.")] = None,
    schema: Annotated[bool, Parameter(negative=(), help="Print a JSON schema of a run's yaml, for editors.")] = False,
) -> int:
    """Show the keys a run's yaml may hold: type, allowed values, default, meaning.

    Parameters
    ----------
    key:
        A key, or a section: rollout.sampling.temperature, rollout, actor.options
    """
    console, registry = Console(), default_registry()
    if schema:
        console.file.write(json.dumps(run_schema(registry), indent=1) + "\n")
        return 0
    known = find.run_keys()
    if key is None:
        show.show_all(known, console)
    else:
        _show(key.removesuffix("="), backend, known, registry, console)
    return 0


def _show(word: str, backend: str | None, known: list[Key], registry: Registry, console: Console) -> None:
    by_path = {key.path: key for key in known} | {key.path.replace("[]", ""): key for key in known}
    holder = next((key for key in known if key.role and word.startswith(key.path)), None)
    if backend is not None and holder is None:
        raise ConfigError(
            f"{word} has no options of a backend",
            why=f"such keys are {', '.join(key.path for key in known if key.role)}",
            fix=f"areal config actor.options --backend {backend}, or areal backends {backend}",
        )
    if holder is not None and backend is not None:
        options = find.option_keys(registry, holder, backend)
        if word == holder.path:
            return show.show_options(f"{holder.path} of {holder.role} {backend}", options, console)
        by_path = {key.path: key for key in options}
        known = options
    if word not in by_path:
        raise find.unknown(word, known)
    found = by_path[word]
    if found.section:
        return show.show_section(found, find.under(found.path, known), console)
    show.show_key(found, console)
    if found.role:
        names = ", ".join(registry.names(found.role))
        console.print(f"areal config {found.path} --backend NAME tells the keys of one of: {names}", highlight=False)
    return None
