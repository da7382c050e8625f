"""What an attrs validator allows, in the words of JSON schema.

Knows: the validators of attrs that bound one value.
Does not know: a validator somebody wrote himself: that one speaks at planning.
"""

from __future__ import annotations

from typing import Any

import attrs

Limits = dict[str, Any]  # Any: numbers, texts, lists of either

_BOUNDS = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
_WORDS = (*_BOUNDS.values(), "enum")


def field_limits(field: attrs.Attribute[Any]) -> Limits:  # Any: of any field
    """Return what a field allows: by its validator, or by its metadata where something else checks it."""
    found = {**limits(field.validator), **{word: field.metadata[word] for word in _WORDS if word in field.metadata}}
    return {word: list(value) if isinstance(value, tuple) else value for word, value in found.items()}


def limits(validator: object) -> Limits:
    """Return what a field's validator allows; empty for None and for what is not known here."""
    if hasattr(validator, "compare_op"):
        return {_BOUNDS[validator.compare_op]: getattr(validator, "bound", None)}
    if isinstance(several := getattr(validator, "_validators", None), tuple):
        return {word: value for one in several for word, value in limits(one).items()}
    if (inner := getattr(validator, "validator", None)) is not None:  # optional
        return limits(inner)
    if (options := getattr(validator, "options", None)) is not None:
        return {"enum": list(options)}
    if (length := getattr(validator, "min_length", None)) is not None:
        return {"minLength": length}
    if (pattern := getattr(validator, "pattern", None)) is not None:
        return {"pattern": pattern.pattern}
    return {}


def in_words(found: Limits) -> str:
    """Return limits as people write them: `>= 0, < 1`, or nothing.

    Example: in_words({"minimum": 0, "exclusiveMaximum": 1}) == ">= 0, < 1"
    """
    signs = {word: sign for sign, word in _BOUNDS.items()}
    parts = [f"{sign} {found[word]:g}" for word, sign in signs.items() if word in found]
    if "minLength" in found or "minItems" in found:
        parts.append(f"at least {found.get('minLength', found.get('minItems'))} long")
    if "pattern" in found:
        parts.append(f"matches {found['pattern']}")
    return ", ".join(parts)
