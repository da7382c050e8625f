"""The JSON schema (draft 2020-12) of an attrs class: what a run's yaml may hold, for editors and for `areal config`.

Knows: how types become a schema (msgspec does it), and what msgspec leaves out: limits, meanings, unknown keys,
options of plugins, `${...}`.
Does not know: how keys are shown (`keys`, `show`).
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import metadata
from types import UnionType
from typing import Any

import attrs
import msgspec

from areal_config.limits import field_limits
from areal_config.meanings import about, meanings
from areal_core.config.schema import RunConfig
from areal_core.contract.errors import ArealError
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure

Schema = dict[str, Any]  # Any: JSON

_FACTORY: Any = attrs.Factory  # Any: mypy takes it for a function

DIALECT = "https://json-schema.org/draft/2020-12/schema"
INTERPOLATION = {"type": "string", "pattern": r"\$\{", "description": "The value of another key or of a variable."}


GROUP = "areal.keys"
"""Entry points that say what a key of a run holds where the core does not know: key -> attrs class."""


def run_schema(registry: Registry | None = None) -> Schema:
    """Return the schema of a run's yaml; with a registry also of the options of everything installed."""
    schema = class_schema(RunConfig)
    for entry in metadata.entry_points(group=GROUP):
        found = schema["$defs"]["RunConfig"]["properties"][entry.name]
        held = class_schema(entry.load())
        found["anyOf"] = [{"$ref": held["$ref"]}, {"$ref": "#/$defs/Interpolation"}]
        schema["$defs"] |= held["$defs"]
    if registry is not None:
        for name, cls in _classes(RunConfig).items():
            _add_options(schema["$defs"], name, cls, registry)
    return {
        "$schema": DIALECT,
        "title": "A run of areal",
        "$ref": "#/$defs/RunConfig",
        "$defs": dict(sorted(schema["$defs"].items())),
    }


def class_schema(cls: type) -> Schema:
    """Return the schema of one attrs class: `$ref` to it, and `$defs`."""
    (root,), definitions = msgspec.json.schema_components([_struct(cls)], ref_template="#/$defs/{name}")
    for name, one in _classes(cls).items():
        if name in definitions:
            definitions[name] = _of_enum(one) if issubclass(one, Enum) else _of_attrs(definitions[name], one)
    return {**root, "$defs": {**definitions, "Interpolation": INTERPOLATION}}


@cache
def _struct(cls: type) -> type:
    """Return an attrs class as one of msgspec's own, without defaults: it takes none that looks at other fields."""
    hints = typing.get_type_hints(cls)
    return msgspec.defstruct(cls.__name__, [(field.name, _mirrored(hints[field.name])) for field in attrs.fields(cls)])


def _mirrored(hint: Any) -> Any:  # Any: a type expression
    if isinstance(hint, type) and attrs.has(hint):
        return _struct(hint)
    parts = tuple(_mirrored(part) for part in typing.get_args(hint))
    if not parts:
        return hint
    origin = typing.get_origin(hint)
    return typing.Union[parts] if origin in (UnionType, typing.Union) else origin[parts]  # noqa: UP007  (a tuple)


def _classes(cls: type, seen: dict[str, type] | None = None) -> dict[str, type]:
    """Return the attrs classes and enumerations that a class is made of, by name."""
    seen = {} if seen is None else seen
    if cls.__name__ not in seen:
        seen[cls.__name__] = cls
        for hint in typing.get_type_hints(cls).values() if attrs.has(cls) else ():
            for part in _parts(hint):
                _classes(part, seen)
    return seen


def _parts(hint: object) -> Iterator[type]:
    for part in (hint, *typing.get_args(hint)):
        if part is not hint and typing.get_args(part):
            yield from _parts(part)
        elif isinstance(part, type) and (attrs.has(part) or issubclass(part, Enum)):
            yield part


def _of_enum(cls: type[Enum]) -> Schema:
    meaning = meanings(cls)
    choices = [f"{member.value}: {meaning[name]}" for name, member in cls.__members__.items() if name in meaning]
    return {"enum": [member.value for member in cls], "description": "\n".join([about(cls), *choices])}


def _of_attrs(found: Schema, cls: type) -> Schema:
    meaning = meanings(cls)
    fields = {field.name: field for field in attrs.fields(cls)}
    properties = {
        name: _property(schema, fields[name], meaning.get(name, "")) for name, schema in found["properties"].items()
    }
    required = [name for name, field in fields.items() if field.default is attrs.NOTHING]
    whole = {"type": "object", "description": about(cls), "properties": properties, "additionalProperties": False}
    return {**whole, "required": required} if required else whole


def _property(schema: Schema, field: attrs.Attribute[Any], meaning: str) -> Schema:  # Any: of any field
    default = {} if (told := _default(field)) is attrs.NOTHING else {"default": told}
    value = {word: part for word, part in schema.items() if word != "default"}
    bounds = field_limits(field)
    if "anyOf" in value:  # of an optional field the limits are of the value, not of null
        value["anyOf"] = [part if part == {"type": "null"} else {**part, **bounds} for part in value["anyOf"]]
    else:
        value |= bounds
    described = {"description": meaning} if meaning else {}
    role = {"x-areal-role": field.metadata["role"]} if "role" in field.metadata else {}
    if value.get("type") == "string" and "enum" not in value:
        return {**value, **described, **default, **role}
    return {"anyOf": [*value.pop("anyOf", [value]), {"$ref": "#/$defs/Interpolation"}], **described, **default, **role}


def _default(field: attrs.Attribute[Any]) -> Any:  # Any: plain data, or NOTHING
    """Return a field's default as a yaml has it; none for a section, whose keys have their own."""
    made = field.default
    if isinstance(made, _FACTORY):  # one that looks at other fields is told where the whole is made
        made = attrs.NOTHING if made.takes_self else made.factory()
    return attrs.NOTHING if made is attrs.NOTHING or attrs.has(type(made)) else unstructure(made)


def _add_options(definitions: dict[str, Schema], name: str, cls: type, registry: Registry) -> None:
    """Say what `options` of a class hold, for each plugin that the key beside them may name."""
    for field in attrs.fields(cls) if attrs.has(cls) else ():
        role = field.metadata.get("role")
        if role is None or name not in definitions:
            continue
        rules = definitions[name].setdefault("allOf", [])
        for plugin, options in plugin_options(registry, role).items():
            schema = class_schema(options)
            prefix = f"{role}.{plugin}."
            renamed = _renamed(schema, prefix)
            definitions.update(renamed.pop("$defs"))
            beside = {field.metadata["named_by"]: {"pattern": f"^{plugin}(:|$)"}}
            rules.append(
                {
                    "if": {"properties": beside, "required": list(beside)},
                    "then": {"properties": {field.name: renamed}},
                }
            )


def plugin_options(registry: Registry, role: str) -> dict[str, type]:
    """Return the class of options of every installed plugin of a role that has one and can tell it."""
    found = {}
    for listing in registry.listings(role):
        try:
            cls = None if listing.proof else registry.config_class(role, listing.name)
        except ArealError:
            continue  # a broken plugin has no keys; doctor tells why
        if cls is not None and attrs.has(cls):
            found[listing.name] = cls
    return found


def _renamed(schema: Schema, prefix: str) -> Schema:
    """Return a schema whose definitions have a prefix, so that those of several plugins lie side by side."""

    def walk(value: Any) -> Any:  # Any: JSON
        if isinstance(value, Mapping):
            return {
                key: f"#/$defs/{prefix}{item.removeprefix('#/$defs/')}" if key == "$ref" else walk(item)
                for key, item in value.items()
            }
        return [walk(item) for item in value] if isinstance(value, list) else value

    walked: Schema = walk(schema)
    return {**walked, "$defs": {prefix + name: one for name, one in walked["$defs"].items()}}
