"""`areal migrate-config OLD.yaml`: AReaL's yaml as one of ours.

Knows: files, what goes to standard output and what to standard error.
Does not know: how a key is converted (`convert`).
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console

from areal_config.migrate.convert import Migration, migrate
from areal_core.contract.errors import ConfigError


def migrate_command(old: Path) -> int:
    """Convert a yaml of AReaL. The new one goes to standard output, what to decide and what is lost to standard error.

    Parameters
    ----------
    old:
        The yaml of an experiment, as given to --config.
    """
    migration = migrate(read(old))
    Console().file.write(as_yaml(migration, old.name))
    told = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    for title, lines in (("to decide", migration.decide), ("no equal", migration.lost)):
        for line in lines:
            told.print(f"{title}: {line}")
    return 0


def as_yaml(migration: Migration, name: str) -> str:
    """Return the new yaml, under a comment that says what it is."""
    text: str = OmegaConf.to_yaml(OmegaConf.create(dict(migration.config)))
    return f"# Made from {name}; areal train THIS --dry-run checks it.\n{text}"


def read(path: Path) -> dict[str, object]:
    """Return an old yaml as plain data, interpolations resolved.

    Raises:
        ConfigError: it is missing, no yaml, or an interpolation leads nowhere.
    """
    try:
        found = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # whatever yaml and OmegaConf raise for text that is no yaml
        why = " ".join(str(error).split())[:300]
        raise ConfigError(f"{path} cannot be read", why=why, fix="name a yaml of AReaL") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no keys", fix="name a yaml of AReaL")
    return {str(key): value for key, value in found.items()}
