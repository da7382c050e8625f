"""The classes that may cross a process boundary: those the contract defines, and no others.

Knows: names, fields and constructors of contract types, enums and errors.
Does not know: bytes (`codec`), or any class outside the contract.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from enum import Enum
from types import MappingProxyType
from typing import Any

import attrs
import xxhash

from areal_core.contract import data, errors, inference, optional, scheduler, train, weights, workflow
from areal_core.contract.errors import ArealError

_MODULES = (data, inference, optional, scheduler, train, weights, workflow)

Getter = Callable[[Any], tuple[Any, ...]]  # Any: an instance of the class, and its field values


def _classes() -> Iterator[type]:
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield value


def _getter(names: tuple[str, ...]) -> Getter:
    get = operator.attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(kind))


_OBJECTS = {kind.__name__: kind for kind in _classes() if attrs.has(kind)}

OBJECTS_BY_TYPE = MappingProxyType({kind: (name, _getter(_fields(kind))) for name, kind in _OBJECTS.items()})
"""Class -> its name, and a function from an instance to the tuple of its field values."""

OBJECTS_BY_NAME = MappingProxyType({name: (kind, _fields(kind)) for name, kind in _OBJECTS.items()})
"""Name -> the class and the names of its fields, in order."""

ENUMS = MappingProxyType({kind.__name__: kind for kind in _classes() if issubclass(kind, Enum)})
ENUM_NAMES = MappingProxyType({kind: name for name, kind in ENUMS.items()})

ERRORS = MappingProxyType(
    {
        value.__name__: value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ArealError)
    }
)


def error_name(kind: type[ArealError]) -> str:
    """Return the name of the nearest contract error; a plugin's own subclass travels as what it specialises."""
    return next(base.__name__ for base in kind.__mro__ if ERRORS.get(base.__name__) is base)


def fingerprint() -> str:
    """Return a hash of every name and field that travels. Two processes that differ in it must not talk."""
    lines = [f"{name}({','.join(_fields(kind))})" for name, kind in sorted(_OBJECTS.items())]
    lines += [f"{name}={[member.value for member in kind]}" for name, kind in sorted(ENUMS.items())]
    lines += sorted(ERRORS)
    return xxhash.xxh3_64_hexdigest("\n".join(lines).encode())
