"""What a child of the zygote does: load everything, make one check and tell its lines, or try one mutant.

Knows: sessions and checks.
Does not know: who asks, or what the answer means.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_conformance.mutate import hook

if TYPE_CHECKING:
    from areal_conformance.target import Target

Tell = Callable[..., None]
LOADING = "(loading)"
"""Stands for a check where a mutant cannot even be imported."""
_MAX_MESSAGE = 600
_BROKEN = ("fail", "error")


def load(locator: dict[str, Any]) -> None:
    """Import all that checks of a target import: the suite, the adapter, the backend. Any: JSON, as below."""
    from areal_conformance import session  # noqa: F401  as a check would
    from areal_conformance.benches import bench_for

    target = _target(locator)
    _checks(locator["role"])
    bench = bench_for(locator["role"], target)
    bench.close()
    for side in (target, *target.parts.values()):
        if side.manifest is not None:
            side.registry.load(side.role, side.name)


def cover(tell: Tell, locator: dict[str, Any], check: str, trace: Sequence[str], to: str) -> None:
    """Make one check on the backend as it is; every line it runs below `trace` is written to a file."""
    hook.begin({"trace": list(trace), "to": to})
    _make(tell, locator, [check])
    tell(loaded=list(sys.modules))


def attempt(tell: Tell, locator: dict[str, Any], checks: Sequence[str], path: str, text: str) -> None:
    """Make checks on a backend one of whose files is `text`, until one of them fails."""
    loaded = [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == path]
    assert not loaded, f"{', '.join(loaded)} was imported before it was changed"
    changed = Path(tempfile.gettempdir(), "mutant.py")
    changed.write_text(text, encoding="utf-8")
    hook.begin({"path": path, "source": str(changed)})
    _make(tell, locator, checks)


def _make(tell: Tell, locator: dict[str, Any], checks: Sequence[str]) -> None:
    tell(began=LOADING)
    try:
        from areal_conformance.session import Session

        session, known = Session(_target(locator)), _checks(locator["role"])
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


def _target(locator: dict[str, Any]) -> Target:
    from areal_conformance.target import Locator, locate

    return locate(Locator(**locator))


def _checks(role: str) -> dict[str, Any]:
    from areal_conformance.checks import checks_of

    return {check.id: check for check in checks_of(role)}
