"""The program in a completion: its last fenced block of Python, or all of it.

Knows: fences. Does not know: what runs it.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+.-]*)[^`\n]*$")
_PYTHON = {"", "py", "python", "python3", "Python"}


def extract_program(completion: str) -> str:
    """Return the last fenced block that is Python or says no language; the completion itself if none is fenced.

    A fence that is never closed holds the rest of the completion. A block of another language is no program.
    """
    blocks: list[tuple[str, list[str]]] = []
    fence = ""
    for line in completion.splitlines():
        found = _FENCE.match(line)
        if found is None or (fence and (found[2] or not found[1].startswith(fence))):
            if fence:
                blocks[-1][1].append(line)
        elif fence:
            fence = ""
        else:
            fence = found[1]
            blocks.append((found[2], []))
    if not blocks:
        return completion
    return next(("\n".join(lines) + "\n" for name, lines in reversed(blocks) if name in _PYTHON), "")
