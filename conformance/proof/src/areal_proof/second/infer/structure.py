"""Which tokens keep an output on the way to a text that a structure allows.

A regular expression is followed by matching what is there partially; a JSON schema is turned into one. Only
schemas are taken that need no whitespace and whose objects hold all their properties in order.

Knows: regular expressions, a small part of JSON schema, what each token spells.
Does not know: logits, or when tokens are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import regex

from areal_core.contract.errors import CapabilityError
from areal_core.contract.inference import Grammar, Structure
from areal_proof.second.infer.loading import Loaded

_SCALARS = {
    "integer": r"-?(?:0|[1-9][0-9]*)",
    "number": r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?",
    "boolean": "(?:true|false)",
    "null": "null",
    "string": r'"[^"\\\x00-\x1f]*"',
}


class StructuredText:
    """One request's text."""

    def __init__(self, structure: Structure, loaded: Loaded) -> None:
        """Compile the structure for a model that has a tokenizer."""
        self._pattern = _compile(structure)
        tokenizer, tokens = loaded.tokenizer, range(loaded.shape.vocab)
        assert tokenizer is not None, "check_request has seen to it"
        self._tokenizer = tokenizer
        self._spelled = [tokenizer.decode([token], skip_special_tokens=True) for token in tokens]

    def forbidden(self, output: Sequence[int], end_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens after which the text could not become whole; an end token needs it whole now."""
        text = self._tokenizer.decode(output, skip_special_tokens=False) if output else ""
        match = self._pattern.fullmatch(text, partial=True)
        whole = match is not None and not match.partial
        allowed = ((whole if token in end_ids else self._may(text, said)) for token, said in enumerate(self._spelled))
        return tuple(token for token, is_allowed in enumerate(allowed) if not is_allowed)

    def _may(self, text: str, spelled: str) -> bool:
        return bool(spelled) and self._pattern.fullmatch(text + spelled, partial=True) is not None


def _compile(structure: Structure) -> Any:  # Any: regex is not typed
    try:
        if structure.grammar is Grammar.REGEX:
            return regex.compile(structure.text)
        return regex.compile(_of_schema(json.loads(structure.text)))
    except (regex.error, ValueError, TypeError) as error:
        raise CapabilityError(
            f"the {structure.grammar} {structure.text!r} cannot be followed",
            why=str(error),
            fix="ask for less, or use an inference backend with a grammar engine",
        ) from error


def _of_schema(schema: Mapping[str, Any]) -> str:
    """Return a regular expression for the JSON texts, without whitespace, that a schema allows.

    Raises:
        ValueError: the schema says something this engine does not know.
    """
    rest = {key: value for key, value in schema.items() if key not in ("title", "description", "additionalProperties")}
    if "const" in rest or "enum" in rest:
        values = rest.get("enum", [rest.get("const")])
        return f"(?:{'|'.join(regex.escape(json.dumps(value, separators=(',', ':'))) for value in values)})"
    kind = rest.pop("type", None)
    if kind in _SCALARS and not rest:
        return _SCALARS[kind]
    if kind == "array" and set(rest) == {"items"}:
        item = _of_schema(rest["items"])
        return rf"\[(?:{item}(?:,{item})*)?\]"
    if kind == "object" and set(rest) == {"properties", "required"} and list(rest["properties"]) == rest["required"]:
        members = (f"{regex.escape(json.dumps(key))}:{_of_schema(value)}" for key, value in rest["properties"].items())
        return rf"\{{{','.join(members)}\}}"
    raise ValueError(f"not read: {json.dumps(schema)}")
