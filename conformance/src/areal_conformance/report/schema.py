"""The JSON schema of report.json, made from the classes of the record: `python -m areal_conformance.report.schema`.

The committed file, `report.schema.json` beside this module, is for whoever reads reports without this suite. It says
nothing of fields it does not know: a suite of tomorrow may write more under the same number, and readers ignore it.

Knows: which JSON a field of a type is.
Does not know: what the fields mean.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from areal_conformance.run.record import SCHEMA, Record

PATH = Path(__file__).with_name("report.schema.json")
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema() -> dict[str, Any]:
    """Return the schema of the record, with its hash. Any: JSON."""
    definitions: dict[str, Any] = {}
    whole = _class(Record, definitions)
    whole["properties"]["schema"] = {"const": SCHEMA}
    whole["properties"]["sha256"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of a run of areal-conformance",
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(schema(), indent=2) + "\n"


def _class(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = attrs.fields(kind)
    needed = [field.name for field in fields if field.default is attrs.NOTHING]
    return {
        "type": "object",
        "properties": {field.name: _type(hints[field.name], definitions) for field in fields},
        "required": needed,
    }


def _type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type. Any: a type as `typing` writes it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type(one, definitions) for one in arguments]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if attrs.has(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}
            definitions[hint.__name__] = _class(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _PLAIN[hint]}


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PATH.write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())
