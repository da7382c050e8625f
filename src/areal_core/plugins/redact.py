"""What must not be written down: secrets, known by the name they stand under or by the shape of the text they are in.

Knows: names and shapes.
Does not know: where the text goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    r"(?P<before>://)[^/@\s]+(?=@)"
    r"|(?P<query>[?&;](?:\w*(?:token|key|secret|password|signature)|sig|auth)=)[^&;\s]+"
    r"|(?P<scheme>\b(?:Bearer|Basic|Token) +)[\w.~+/=-]{8,}",
    re.IGNORECASE,
)


def redact(value: Any, name: str = "") -> Any:
    """Replace everything that stands under a name of a secret, and what texts hold of secrets. Any: plain data.

    Numbers and flags under `token` or `key` are counts and choices, and stay.
    """
    secret = names_secret(name)
    if isinstance(value, Mapping):
        return {key: redact(item, name if secret else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item, name) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return REDACTED if secret and not re.search(r"(token|key)s?$", _words(name)) else value
    if not isinstance(value, str) or not value:
        return value
    return REDACTED if secret else _IN_TEXT.sub(_without, value)


def names_secret(name: str) -> bool:
    """Tell whether a key names a secret."""
    words = _words(name)
    return _SECRET.search(words) is not None and _NO_SECRET.search(words) is None


def _words(name: str) -> str:
    return _WORD.sub("_", name).lower()


def _without(found: re.Match[str]) -> str:
    return next((kept for kept in found.groupdict().values() if kept), "") + REDACTED
