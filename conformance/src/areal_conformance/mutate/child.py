"""What a child of the zygote does: make one check and tell its lines, or try one mutant.

Knows: the order of a session.
Does not know: who asks, or what the answer means.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from areal_conformance.mutate import hook
from areal_conformance.mutate.subject import Told, checks_for, session_of

Tell = Callable[..., None]
LOADING = "(loading)"
"""Stands for a check where a mutant cannot even be imported."""
_MAX_MESSAGE = 600
_BROKEN = ("fail", "error")


def cover(tell: Tell, subject: Told, check: str, trace: Sequence[str], to: str) -> None:
    """Make one check on the backend as it is; every line it runs below `trace` is written to a file."""
    hook.begin({"trace": list(trace), "to": to})
    _make(tell, subject, [check])
    tell(loaded=list(sys.modules))


def attempt(tell: Tell, subject: Told, checks: Sequence[str], path: str, text: str) -> None:
    """Make checks on a backend one of whose files is `text`, until one of them fails."""
    loaded = [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == path]
    assert not loaded, f"{', '.join(loaded)} was imported before it was changed"
    changed = Path(tempfile.gettempdir(), "mutant.py")
    changed.write_text(text, encoding="utf-8")
    hook.begin({"path": path, "source": str(changed)})
    _make(tell, subject, checks)


def _make(tell: Tell, subject: Told, checks: Sequence[str]) -> None:
    tell(began=LOADING)
    try:
        session, known = session_of(subject), checks_for(subject)
    except Exception as error:
        tell(ended=LOADING, outcome="error", message=f"{type(error).__name__}: {error}"[:_MAX_MESSAGE], seconds=0.0)
        return
    for key in checks:
        tell(began=key)
        result = session.run(known[key])
        outcome = str(result.outcome)
        tell(ended=key, outcome=outcome, message=result.message[:_MAX_MESSAGE], seconds=round(result.seconds, 3))
        if outcome in _BROKEN:
            return  # what hangs in `close` would cost its deadline, and is known to be broken already
    tell(began="(closing)")
    session.close()
