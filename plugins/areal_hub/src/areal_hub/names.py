"""Names on the Hugging Face hub, where a run may name a folder: `Qwen/Qwen3-0.6B`, `Qwen/Qwen3-0.6B@main`.

Knows: what a name looks like, and which are paths after all.
Does not know: what the hub has.
"""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?", re.ASCII)


@frozen
class HubName:
    """A repository, and a branch, tag or commit of it; empty is its main branch."""

    repo: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def hub_name(text: str) -> HubName | None:
    """Return what a text names on the hub, None if it names a path on this machine.

    Of two words with a slash between, a folder called so here comes first; so does any in a folder called as the first.
    """
    found = _NAME.fullmatch(text)
    if found is None or Path(text).exists() or Path(text.partition("/")[0]).is_dir():
        return None
    return HubName(found["repo"], found["revision"] or "")
