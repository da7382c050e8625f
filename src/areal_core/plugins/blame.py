"""What somebody else's code raised, and where in it, in few lines.

Knows: tracebacks, and which files are a library's or ours.
Does not know: what was called, or what becomes of the error.
"""

from __future__ import annotations

import re
import sysconfig
import traceback

from areal_core.plugins.redact import redact

_MAX_FRAMES = 4
_MAX_MESSAGE = 600
_NOT_THEIRS = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib"))
_OURS = re.compile(r"[/\\]areal_(core|agentic|agents|environments|local|torch|serving|tasks|report)[/\\]")


def told(exc: BaseException) -> str:
    """Return `Type: message` and the lines of the user's own code it passed through, the innermost last; no secrets.

    Example:
        KeyError: 'answer'
            /home/me/rewards.py:6, in matches: return float(row["answer"] in completion)

    Frames of libraries and of areal are left out; where there are no others, the innermost one stands for all.
    """
    given = redact(str(exc)[: 2 * _MAX_MESSAGE])
    message = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in given)
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]} ..."
    frames = traceback.extract_tb(exc.__traceback__)
    theirs = [
        frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS) and not _OURS.search(frame.filename)
    ]
    lines = [f"{type(exc).__name__}: {message}".rstrip(": ")]
    for frame in (theirs or frames[-1:])[-_MAX_FRAMES:]:
        lines.append(redact(f"    {frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}".rstrip(": ")))
    return "\n".join(lines)
