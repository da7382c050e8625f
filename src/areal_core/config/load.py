"""A yaml file and `a.b=c` overrides into a checked RunConfig; and a RunConfig back into yaml.

Knows: files, interpolation, overrides, redaction of secrets.
Does not know: what a value means (`schema`) or what fits with what (`plan`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_core.config.schema import RunConfig
from areal_core.contract.errors import ConfigError
from areal_core.plugins.structure import structure, unstructure

_SECRET = re.compile(
    r"(^|_)(apikey|key|key_id|token|passphrase|credential|auth|authorization|cookie|pat)s?$"
    r"|(secret|password|passwd|pwd)s?$|^(secret|password)_"
)
_NO_SECRET = re.compile(r"(^|_)(eos|bos|pad|unk|sep|cls|mask|stop)_tokens?$")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_REDACTED = "<redacted>"


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a run's configuration: `base`, then the file, then the overrides, later ones winning.

    Overrides are `a.b=c` with yaml values; `${a.b}` interpolates, `${oc.env:NAME}` reads the environment.

    Raises:
        ConfigError: the file is missing or not yaml, or an override is not `key=value`.
        UnknownKey, WrongType: see `structure`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for override in overrides:
        if not re.match(r"[A-Za-z_][\w.\[\]]*=", override):
            raise ConfigError(
                f"override {override!r} is not key=value",
                fix="for example: areal train run.yaml rollout.max_staleness=0",
            )
    try:
        layers = [OmegaConf.create(dict(base or {}))]
        if path is not None:
            layers.append(OmegaConf.create(_read_yaml(Path(path))))
        layers.append(OmegaConf.from_dotlist(list(overrides)))
        plain = OmegaConf.to_container(OmegaConf.merge(*layers), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path or 'overrides'}: {error}".splitlines()[0], why="the values do not merge") from None
    return structure(RunConfig, plain)


def dump_config(config: RunConfig) -> str:
    """Return the resolved configuration as yaml, secrets replaced by `<redacted>`."""
    import yaml

    return yaml.safe_dump(redact(unstructure(config)), sort_keys=False)


def redact(value: Any, name: str = "") -> Any:
    """Replace every string under a key that names a secret, and user and password in an address. Any: plain data."""
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item, name) for item in value]
    if not isinstance(value, str) or not value:
        return value
    return _REDACTED if _names_secret(name) else _IN_ADDRESS.sub(_REDACTED, value)


def _names_secret(name: str) -> bool:
    words = _WORD.sub("_", name).lower()
    return _SECRET.search(words) is not None and _NO_SECRET.search(words) is None


def redacted_keys(config: RunConfig) -> list[str]:
    """Return the dotted paths of values that `redact` replaced; a run cannot use them."""
    return list(_redacted(unstructure(config), ""))


def _redacted(value: Any, path: str) -> Iterator[str]:  # Any: a tree of plain data
    if isinstance(value, str) and _REDACTED in value:
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _redacted(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _redacted(item, f"{path}[{number}]")


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"configuration file {path} does not exist", fix="check the path; examples/ has some"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read", why=str(error)) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration file {path} is not yaml", why=str(error).replace("\n", " ")) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"configuration file {path} holds a {type(content).__name__}", why="it must hold keys and values"
        )
    return content
