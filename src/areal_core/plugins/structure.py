"""Plain data into checked attrs classes, and back.

Knows: attrs classes, strict types, and how to say which key of a yaml is wrong.
Does not know: any particular configuration.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_origin

import attrs
import cattrs
from cattrs import errors
from cattrs.gen import make_dict_structure_fn

from areal_core.contract.errors import ArealError, UnknownKey, WrongType
from areal_core.plugins.extensions import ForeignNames, extension
from areal_core.plugins.redact import names_secret

T = TypeVar("T")

_CONTAINERS: Mapping[Any, tuple[Any, str]] = {  # Any: the origin of a type expression -> what isinstance takes
    tuple: ((list, tuple), "a list"),
    Mapping: (Mapping, "keys and values"),
}


def structure(cls: type[T], mapping: Mapping[str, Any], path: str = "") -> T:
    """Build `cls` from plain data. Nothing is coerced but int to float.

    Args:
        mapping: as read from a yaml; Any because that is what a file may hold.
        path: where the mapping stands in the file, for the error's sake: `rollout.options`.

    Raises:
        UnknownKey: a key nobody reads, with the nearest key there is.
        WrongType: a value of the wrong type or out of its range.
    """
    try:
        return _CONVERTER.structure(dict(mapping), cls)
    except (errors.ClassValidationError, errors.IterableValidationError, TypeError) as error:
        raise _translate(error, cls, path, mapping) from None


def unstructure(value: Any) -> Any:
    """Return plain data (dicts, lists, strings, numbers) that `structure` turns back. Any: it is a tree."""
    if attrs.has(type(value)):
        return {field.name: unstructure(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {str(unstructure(key)): unstructure(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [unstructure(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _translate(error: Exception, cls: type, path: str, mapping: Mapping[str, Any]) -> ArealError:
    """Turn the first leaf of a cattrs error tree into one of our errors, with its dotted path."""
    here = path
    current: Exception = error
    owner: Any = cls
    value: Any = mapping  # what stands at `here`
    wanted: object = cls
    while isinstance(current, (errors.ClassValidationError, errors.IterableValidationError)):
        if isinstance(current, errors.ClassValidationError):
            owner = current.cl
        current = current.exceptions[0]
        for note in getattr(current, "__notes__", []):
            if isinstance(note, errors.AttributeValidationNote):
                here = f"{here}.{note.name}" if here else str(note.name)
                value = value.get(note.name) if isinstance(value, Mapping) else None
                wanted = note.type
            elif isinstance(note, errors.IterableValidationNote) and isinstance(note.index, int):
                here = f"{here}[{note.index}]"
                value = value[note.index] if isinstance(value, (list, tuple)) else None
    if isinstance(current, ArealError):  # said by the class itself
        return current
    if isinstance(current, errors.ForbiddenExtraKeysError):
        return _unknown_key(sorted(current.extra_fields)[0], current.cl, here, value)
    if isinstance(current, KeyError):
        missing = str(current.args[0])
        at = here if here.endswith(missing) else _at(here, missing)
        return WrongType(f"{at} is missing", why=f"{_name(owner)} needs it", fix="add it")
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        allowed = [str(member.value) for member in wanted]
        near = difflib.get_close_matches(str(current).split()[0].strip("'"), allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(allowed)}"
        return WrongType(f"{here}: {_reason(current)}", why=f"allowed: {', '.join(allowed)}", fix=hint)
    outside = isinstance(current, ValueError)
    counted = wanted in (int, float) and here.endswith("tokens")  # a number of tokens is no secret, an api_token is
    told = "got something else" if names_secret(here.rpartition(".")[2]) and not counted else _reason(current)
    return WrongType(
        f"{here or _name(owner)}: {told}",
        why="the value is out of range" if outside else "values are not converted: they have the type yaml gave them",
        fix=_example(owner, here, getattr(cls, "TOLD_BY", "")),
    )


def _example(owner: type, path: str, told_by: str) -> str:
    """Return the key with its default, where it has a plain one; or else the command that tells of it, if there is."""
    field = attrs.fields_dict(owner).get(path.rpartition(".")[2]) if attrs.has(owner) else None
    default = getattr(field, "default", None)
    if isinstance(default, (bool, int, float, str, tuple)) and default != "":
        shown = str(default).lower() if isinstance(default, bool) else unstructure(default)
        return f"for example {path}={shown}, its default"
    return f"{told_by} {path} tells what it may be" if told_by and path else f"see the fields of {_name(owner)}"


def _unknown_key(key: str, cls: type, path: str, mapping: object) -> UnknownKey:
    foreign: ForeignNames | None = extension("foreign_names")
    told = foreign(_at(path, key), mapping.get(key) if isinstance(mapping, Mapping) else None) if foreign else ""
    allowed = [field.name for field in attrs.fields(cls)]
    renamed = [field.name for field in attrs.fields(cls) if field.metadata.get("was") == key]
    near = renamed or difflib.get_close_matches(key, allowed, n=1)
    return UnknownKey(
        f"unknown key {_at(path, key)!r}",
        why=f"keys here: {', '.join(allowed) or 'none'}",
        fix=f"{'it is called' if renamed else 'did you mean'} {_at(path, near[0])!r}{' now' if renamed else '?'}"
        if near and (renamed or not told)
        else told or "remove it, or check its place in the file",
    )


def _at(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _name(cls: object) -> str:
    return getattr(cls, "__name__", str(cls))


def _reason(error: Exception) -> str:
    text = " ".join(str(error.args[0]).split()) if error.args else type(error).__name__
    return text if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {text}"


def _strict(value: object, kind: type) -> object:
    if issubclass(kind, Enum):  # an enumeration of strings is a string to the dispatch
        return kind(value)
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, accepted):
        raise TypeError(f"got {value!r} ({type(value).__name__}), wanted {kind.__name__}")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("got nan, wanted a number")
    return float(value) if kind is float else value  # type: ignore[arg-type]


def _text_or_keys(value: object, _: object) -> object:
    if not isinstance(value, str | Mapping):
        raise TypeError(f"got {value!r} ({type(value).__name__}), wanted a text or keys")
    return value


def _section(converter: cattrs.Converter, cls: type) -> Callable[[object, type], object]:
    build: Callable[[Mapping[str, Any], type], object] = make_dict_structure_fn(cls, converter)
    attrs.resolve_types(cls)

    def from_mapping(value: object, _: type) -> object:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(f"got {value!r} ({type(value).__name__}), wanted the keys of {cls.__name__}")
        if odd := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"got the key {odd[0]!r}, wanted names")
        for field in attrs.fields(cls):
            if field.name in value:
                _check_container(cls, field, value[field.name])
        return build(value, cls)

    return from_mapping


def _check_container(cls: type, field: attrs.Attribute[Any], value: object) -> None:
    """Refuse a text for a list, which cattrs would cut into its letters, and nothing for a mapping."""
    kinds, wanted = _CONTAINERS.get(get_origin(field.type), (object, ""))
    if isinstance(value, kinds):
        return
    error = TypeError(f"got {value!r} ({type(value).__name__}), wanted {wanted}")
    error.add_note(errors.AttributeValidationNote("", field.name, field.type))
    raise errors.ClassValidationError("", [error], cls)


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True, prefer_attrib_converters=False)
    for kind in (int, float, str, bool):
        converter.register_structure_hook(kind, _strict)
    converter.register_structure_hook_factory(attrs.has, lambda cls: _section(converter, cls))
    converter.register_structure_hook(str | Mapping[str, Any], _text_or_keys)
    converter.register_structure_hook(Path, lambda value, _: Path(str(_strict(value, str))))
    return converter


_CONVERTER = _make_converter()
