"""What must not be written down: secrets, known by the name they stand under or by the shape of the text they are in.

Knows: names and shapes.
Does not know: where the text goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

REDACTED = "<redacted>"
_SECRET = re.compile(
    r"secret|passw|passphrase|credential|webhook|cookie|bearer|authorization|apikey|private_?key|access_?key"
    r"|(^|_)(key|key_id|auth|pat|pwd|pass|pin|otp|jwt|dsn|sas|signature|session_id|conn_str|connection_string)s?$"
    r"|pwd$|token$|(^|_)tokens$"
)
_NO_SECRET = re.compile(
    r"(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|new|max|min|num|image)_tokens?$|(^|_)tokens?_(id|per)"
)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")
_IN_TEXT = re.compile(
    r"(?=[:?&;]|(?<![a-z\d])[abteghskx])(?:"  # where one may begin: elsewhere one look suffices
    r"(?P<before>://)[^/@\s]+(?=@)"
    r"|(?P<query>[?&;](?:\w*(?:token|key|secret|password|signature)|sig|auth)=)[^&;\s\"<>]+"
    r"|(?P<header>(?:authorization|api[-_]?key)[\"'\\ ]*[:=][\"'\\ ]*"
    r"(?:(?:Bearer|Basic|Token) +|(?=[\w.~+/-]*\d)))[\w.~+/=-]{6,}"
    r"|(?P<bearer>Bearer +)(?=[\w.~+/-]*(?:\d|=|(?-i:[a-z][A-Z])))[\w.~+/=-]{8,}"
    r"|(?P<scheme>(?:Basic|Token) +)(?:[\w+/-]{6,}={1,2}(?![\w=])|(?=[\w.]*\d)[A-Za-z\d.]{20,})"
    r"|(?-i:sk-[\w-]{0,40}?[A-Za-z\d]{16}[\w-]*|(?:hf|gh[opsu])_[A-Za-z\d]{16,}|AKIA[A-Z\d]{16}\b"
    r"|(?:github_pat_|glpat-|xox[abp]-)[\w-]{16,}|eyJ[\w-]{8,200}\.eyJ[\w-]+\.[\w-]+))",
    re.IGNORECASE,
)


def redact(value: Any, name: str = "") -> Any:
    """Replace everything under a name of a secret; in texts what looks like a key or a credential. Any: plain data.

    Numbers and flags under `token` or `key` are counts and choices, and stay.
    """
    secret = name != "" and names_secret(name)
    if isinstance(value, str):
        return REDACTED if secret and value else _IN_TEXT.sub(_without, value)
    if isinstance(value, Mapping):
        return {key: redact(item, name if secret else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item, name) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return REDACTED if secret and not re.search(r"(token|key)s?$", _words(name)) else value
    return value


@lru_cache(maxsize=1024)
def names_secret(name: str) -> bool:
    """Tell whether a key names a secret."""
    words = _words(name)
    return _SECRET.search(words) is not None and _NO_SECRET.search(words) is None


def _words(name: str) -> str:
    return _WORD.sub("_", name).lower()


def _without(found: re.Match[str]) -> str:
    return next((kept for kept in found.groupdict().values() if kept), "") + REDACTED
