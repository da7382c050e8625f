"""A yaml file and `a.b=c` overrides into a checked RunConfig; and a RunConfig back into yaml.

Knows: files, interpolation, overrides; numbers as YAML 1.2 has them (decision 0030).
Does not know: what a value means (`schema`) or what fits with what (`plan`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from areal_core.config.schema import RunConfig
from areal_core.contract.errors import ArealError, ConfigError
from areal_core.plugins.extensions import Presets, need
from areal_core.plugins.redact import REDACTED, redact
from areal_core.plugins.structure import structure, unstructure


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a run's configuration: `base`, then the file, then the overrides, later ones winning.

    Overrides are `a.b=c` with yaml values; `${a.b}` interpolates, `${oc.env:NAME}` reads the environment. The keys of
    `algorithm.preset` come just before what names it: what stands beside or after it counts.

    Raises:
        ConfigError: the file is missing or not yaml, or an override is not `key=value`.
        UnknownKey, WrongType: see `structure`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for override in overrides:
        if not re.match(r"[A-Za-z_][\w.\[\]]*=", override):
            raise ConfigError(f"override {override!r} is not key=value", fix="for example: rollout.max_staleness=0")
    try:
        layers = [OmegaConf.create(dict(base or {})), *([_read_yaml(Path(path))] if path is not None else [])]
        whole = OmegaConf.merge(*_with_preset([*layers, OmegaConf.from_dotlist(list(overrides))]))
        plain = OmegaConf.to_container(whole, resolve=True)
    except OmegaConfBaseException as error:
        what = f"{path or 'overrides'}: {error}".splitlines()[0]
        raise ConfigError(what, why="the values do not merge", fix="check names, dots and ${...}") from None
    except ArealError:
        raise
    except Exception as error:  # whatever yaml and OmegaConf raise beside their own for text that is no yaml
        raise ConfigError(
            f"{path or 'the overrides'} cannot be read as yaml",
            why=f"{type(error).__name__}: {' '.join(ascii(str(error))[1:-1].split())[:300]}",
            fix="quote what has brackets, colons or tags in it, for example 'name=\"a: b\"'",
        ) from None
    return structure(RunConfig, plain)


def _with_preset(layers: list[Any]) -> list[Any]:  # Any: DictConfigs
    """Return the layers with the keys of the preset before the last of them that names one."""
    from omegaconf import OmegaConf

    named = [(number, OmegaConf.select(layer, "algorithm.preset")) for number, layer in enumerate(layers)]
    number, name = max(((number, name) for number, name in named if name is not None), default=(0, ""))
    if not isinstance(name, str) or not name:
        return layers
    presets: Presets = need("presets", f"algorithm.preset {name}")
    return [*layers[:number], OmegaConf.create(dict(presets.keys(name))), *layers[number:]]


def dump_config(config: RunConfig) -> str:
    """Return the resolved configuration as yaml that reads back equal, but for secrets: they are `<redacted>`."""
    from omegaconf import OmegaConf

    text: str = OmegaConf.to_yaml(OmegaConf.create(_literal(redact(unstructure(config)))))
    return text


def _literal(value: Any) -> Any:  # Any: a tree of plain data
    """Escape what would be read as an interpolation."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def redacted_keys(config: RunConfig) -> list[str]:
    """Return the dotted paths of values that `redact` replaced; a run cannot use them."""
    return list(_redacted(unstructure(config), ""))


def _redacted(value: Any, path: str) -> Iterator[str]:  # Any: a tree of plain data
    if isinstance(value, str) and REDACTED in value:
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _redacted(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _redacted(item, f"{path}[{number}]")


def _read_yaml(path: Path) -> Any:  # Any: a DictConfig
    from omegaconf import DictConfig, OmegaConf

    try:
        with path.open() as file:
            text = file.read(1_000_001)
        if len(text) > 1_000_000:
            raise OSError("it has more than a million characters")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist", fix="examples/ has some") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read", why=str(error)) from None
    content = OmegaConf.load(StringIO(text))
    if not isinstance(content, DictConfig):
        raise ConfigError(f"configuration file {path} holds a list", why="it must hold keys")
    return content
