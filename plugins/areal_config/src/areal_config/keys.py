"""The keys of a run, or of a plugin's options, one by one.

Knows: how a schema becomes a list of dotted keys, each with all there is to say about it.
Does not know: where the schema comes from (`schema`), or how keys are shown (`show`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from areal_config.limits import in_words
from areal_config.schema import Schema

_WORDS = {"string": "text", "boolean": "true or false", "object": "keys and values", "null": "null"}
_NO_DEFAULT = object()
Defaults = Mapping[str, Any]  # Any: plain data


@frozen(kw_only=True)
class Key:
    """One key of a yaml.

    Example: Key(path="rollout.group_size", type="integer", limits=">= 1", default=8, meaning="Episodes per prompt, ..")
    """

    path: str
    type: str
    meaning: str
    limits: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """Each allowed value, and what it means where that is written down."""
    default: Any = _NO_DEFAULT  # Any: plain data
    role: str = ""
    """Of a key that holds a plugin's own keys: the role of the plugin."""
    section: bool = False
    """Whether it holds keys that are listed too."""

    @property
    def needed(self) -> bool:
        """Whether it has no default."""
        return self.default is _NO_DEFAULT

    @property
    def default_text(self) -> str:
        """The default as it stands in a yaml; nothing for a section or without one."""
        if self.needed or (self.section and self.default):
            return ""
        return yaml_text(self.default)

    @property
    def parent(self) -> str:
        """The section it stands in; empty at the top."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last word of the path."""
        return self.path.rpartition(".")[2]


def yaml_text(value: Any) -> str:  # Any: plain data
    """Return plain data as it may stand behind a key: `1e-06`, `null`, `[]`, `text`."""
    if isinstance(value, str):
        return value if value and value.isascii() and value.isprintable() and ": " not in value else json.dumps(value)
    return json.dumps(value)


def keys(schema: Schema, prefix: str = "", defaults: Defaults | None = None) -> list[Key]:
    """Return every key of a schema in its order, each section before what it holds.

    `defaults` are those of the whole, which may differ from those of its parts.
    """
    return list(_keys(_definition(schema["$ref"], schema), schema, prefix, defaults or {}))


def _keys(owner: Schema, schema: Schema, prefix: str, defaults: Defaults) -> Iterator[Key]:
    for name, found in owner["properties"].items():
        path = f"{prefix}.{name}" if prefix else name
        default = defaults.get(name, found.get("default", _NO_DEFAULT))
        yield from _one(path, found, schema, default)


def _one(path: str, found: Schema, schema: Schema, default: Any) -> Iterator[Key]:  # Any: plain data
    parts = [part for part in found.get("anyOf", [found]) if part != {"$ref": "#/$defs/Interpolation"}]
    inner, mark = _section(parts, schema)
    meaning = found.get("description", "") or (inner or {}).get("description", "")
    if inner is not None:
        kind = "list of sections" if mark else "section"
        yield Key(path=path, type=kind, meaning=meaning, section=True, default=default)
        yield from _keys(inner, schema, path + mark, default if isinstance(default, Mapping) else {})
        return
    choices: list[tuple[str, str]] = []
    words, types = "", []
    for part in parts:
        resolved = _definition(part["$ref"], schema) if "$ref" in part else part
        told = dict(line.split(": ", 1) for line in resolved.get("description", "").split("\n")[1:])
        choices += [(yaml_text(value), told.get(str(value), "")) for value in resolved.get("enum", ())]
        words = in_words(resolved) or words
        types.append(_type(resolved))
    yield Key(
        path=path,
        type=" or ".join(types),
        meaning=meaning,
        limits=words,
        choices=tuple(choices),
        role=found.get("x-areal-role", ""),
        default=default,
    )


def _section(parts: Sequence[Schema], schema: Schema) -> tuple[Schema | None, str]:
    """Return the definition a key holds, and what its path has before the next dot."""
    for part in parts:
        items = part.get("items")
        reference = items if part.get("type") == "array" and isinstance(items, dict) else part
        if "$ref" in reference and "properties" in (found := _definition(reference["$ref"], schema)):
            return found, "" if reference is part else "[]"
    return None, ""


def _type(schema: Schema) -> str:
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])} {_type(schema['prefixItems'][0])}s"
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    if kind == "object" and isinstance(inner := schema.get("additionalProperties"), dict) and inner.get("type"):
        return f"keys with {_type(inner)}"
    if "enum" in schema:
        return "text" if all(isinstance(value, str) for value in schema["enum"]) else "number"
    return _WORDS.get(str(kind), str(kind or "anything"))


def _definition(reference: str, schema: Schema) -> Schema:
    found: Schema = schema["$defs"][reference.removeprefix("#/$defs/")]
    return found
