"""Options of the provider `local`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attrs import field, frozen

from areal_core.contract.errors import ConfigError


def _absolute(_config: object, attribute: object, paths: Iterable[str]) -> None:
    for path in paths:
        if not Path(path).is_absolute():
            raise ConfigError(
                f"{getattr(attribute, 'name', 'path')}: {path!r} is no absolute path", fix="write it from / on"
            )


def _absolute_if_any(config: object, attribute: object, path: str) -> None:
    _absolute(config, attribute, [path] if path else [])


@frozen(kw_only=True)
class LocalSandboxConfig:
    """Options of `local`.

    Example: LocalSandboxConfig(python="/srv/tools/bin/python3", readable=("/srv/corpus",))
    """

    python: str = field(default="", validator=_absolute_if_any)
    """The interpreter that sandboxes find as `python3`, with its packages; empty for the one areal runs on, without
    those of its virtual environment."""
    readable: tuple[str, ...] = field(default=(), converter=tuple[str, ...], validator=_absolute)
    """Files and folders that sandboxes may read beside the system's programs, at the same places."""
