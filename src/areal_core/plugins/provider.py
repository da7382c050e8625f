"""What a name stands for once it needs no more looking up: a manifest and a callable.

Knows: how options become the one argument of a factory.
Does not know: where the factory came from.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from areal_core.contract.errors import UnknownKey, WrongType
from areal_core.plugins.manifest import Manifest

Factory = Callable[..., object]


@frozen(kw_only=True)
class Provider:
    """A factory in hand. `origin` is the distribution or the file it came from, as shown to people.

    `keywords` marks a user's `@dataset` function, which takes its options as keywords.
    """

    manifest: Manifest
    factory: Factory
    config: type | None
    origin: str
    keywords: bool = False

    def build(self, options: Mapping[str, Any], path: str) -> object:
        """Check the options and call the factory.

        Raises:
            UnknownKey, WrongType: the options do not fit the config class, or there is none.
        """
        if self.keywords:
            self.check(options, path)
            return self.factory(**options)
        if self.config is None:
            refuse_options(self.manifest, options, path)
            return self.factory()
        return self.factory(structured(self.config, options, path))

    def check(self, options: Mapping[str, Any], path: str) -> None:
        """Refuse options that the factory would not take as keywords.

        Raises:
            UnknownKey: it has no such parameter.
            WrongType: one that it needs is missing.
        """
        parameters = inspect.signature(self.factory).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        names = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        for key in options:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                raise UnknownKey(
                    f"unknown key {_dotted(path, key)!r}",
                    why=f"it takes: {', '.join(names) or 'no options'}",
                    fix=f"did you mean '{near[0]}'?" if near else "remove it",
                )
        for parameter in parameters:
            if parameter.name in names and parameter.default is parameter.empty and parameter.name not in options:
                raise WrongType(f"{_dotted(path, parameter.name)} is missing", why="it has no default")


def structured(config: type, options: Mapping[str, Any], path: str) -> object:
    """Turn options into an instance of a config class; one that is an instance already passes."""
    if isinstance(options, config):
        return options
    from areal_core.plugins.structure import structure  # here: cattrs is not paid for by a listing

    return structure(config, options, path)


def refuse_options(manifest: Manifest, options: Mapping[str, Any], path: str) -> None:
    """Raise UnknownKey when a plugin without a config class is given options."""
    for key in options:
        raise UnknownKey(
            f"unknown key {_dotted(path, key)!r}",
            why=f"{manifest.role} {manifest.name!r} takes no options",
            fix="remove it",
        )


def _dotted(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
